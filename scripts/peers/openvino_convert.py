"""``-m scripts.peers.openvino_convert SOURCE DESTINATION``: a Hugging Face directory as OpenVINO's, in its own dtype.

Runs in OpenVINO's environment.
"""

import sys

from optimum.exporters.openvino import main_export


def main() -> None:
    source, destination = sys.argv[1:]
    main_export(source, destination, task="text-generation-with-past", stateful=True, convert_tokenizer=True)


if __name__ == "__main__":
    main()
