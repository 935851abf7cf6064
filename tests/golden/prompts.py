"""The prompts that Glow's vectors were recorded with. The text is our own."""

from __future__ import annotations

__all__ = ["PROSE", "PROSE_TOKENS", "QUESTION", "SEGMENTS"]

PROSE_TOKENS = 400

QUESTION = "What is the capital of France?"
"""Asked through the chat template, thinking disabled."""

SEGMENTS = (
    "The old harbour lay quiet under the snow, and no ship had come in since November.",
    "She opened the letter with great care. It had been written in a hand that she did not know.",
)
"""Two texts with `<|endoftext|>` (id 0) between them."""

PROSE = """\
In the winter of that year my uncle, who had never in his life consented to leave the valley, announced at \
breakfast that he meant to see the sea. My aunt laid down her spoon. The maid, who had been pouring the \
coffee, went on pouring until it ran over the saucer and along the cloth, and nobody said a word to her about \
it. "The sea," repeated my uncle, as if one of us had contradicted him, "is a thing that a man ought to have \
looked upon before he dies; and since I have been told by the doctor that I am not to expect a great many more \
winters, I had better look upon it now." There was nothing to be done with him when he spoke in that voice. By \
noon the carriage had been brought round, and by evening we had passed the mill, the two bridges, and the last \
of the farms whose names I knew. It rained. The horses went slowly with their heads down, and the lamps threw \
a little yellow light upon the backs of them and upon nothing else in the world. My uncle sat wrapped in his \
black coat and told me stories of his brother, my father, which I had never heard: how he had once walked \
thirty miles to return a book, and how he had fallen in love with a lady whom he had seen only at a window, \
and had married another. On the third morning the road turned sharply to the left between two hills, and the \
wind came up to meet us with a strange cold smell of salt. He got down without help, which he had not done for \
years, and stood upon the wet grass with his hat in his hand. Below us there was a long grey shore, and beyond \
the shore there was only water, moving and shining, as far as the eye could follow it. He looked at it for \
some time. "Well," he said at last, "it is a good deal larger than I was led to suppose." Then he climbed into \
the carriage again, and we drove home.
"""
"""Its first 400 tokens cross the budget of 256, with no two block scores closer than 2e-5 at the cut-off."""
