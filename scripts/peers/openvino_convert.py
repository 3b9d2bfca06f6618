"""``-m scripts.peers.openvino_convert SOURCE DESTINATION``: a Hugging Face directory as OpenVINO's, in its own dtype.

Runs in OpenVINO's environment. The configuration asks for nothing; without one the weights of a model of more than a
billion parameters would be rounded to 8 bits.
"""

import sys

from optimum.exporters.openvino import main_export
from optimum.intel import OVConfig


def main() -> None:
    source, destination = sys.argv[1:]
    task = "text-generation-with-past"
    main_export(source, destination, task=task, ov_config=OVConfig(), stateful=True, convert_tokenizer=True)


if __name__ == "__main__":
    main()
