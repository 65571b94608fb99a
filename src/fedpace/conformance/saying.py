"""How a suite says what is wrong."""


def must(condition: bool, sentence: str) -> None:
    """Raise AssertionError with the sentence unless the condition holds, also under `-O`."""
    if not condition:
        raise AssertionError(sentence)
