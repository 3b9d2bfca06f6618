"""Train, evaluate and export the embedded demonstration model; see ``--help``. Needs the extra ``train`` (optax)."""

from scripts.demo_model.cli import main

if __name__ == "__main__":
    main()
