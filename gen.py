"""The generator: a train summary in, placement lines out. `python gen.py study.json --margin 0.05 --emit`."""

from studytool.cli import gen

if __name__ == "__main__":
    gen(prog_name="gen.py")
