"""Run llama.cpp's own converter on a checkpoint with a tokenizer it does not know. Needs torch.

convert_gguf.py LLAMA_CPP_SOURCE CHECKPOINT OUTPUT
"""

import runpy
import sys


def main() -> None:
    source, checkpoint, output = sys.argv[1:]
    sys.path[:0] = [source, f"{source}/gguf-py"]
    from conversion.base import TextModel  # noqa: PLC0415 (found only by the line above)

    # The converter names the pre-tokenizer by a hash of its output. Which one it is does not change any timing.
    TextModel.get_vocab_base_pre = lambda _self, _tokenizer: "qwen2"
    script = f"{source}/convert_hf_to_gguf.py"
    sys.argv = [script, checkpoint, "--outfile", output, "--outtype", "bf16"]
    runpy.run_path(script, run_name="__main__")


main()
