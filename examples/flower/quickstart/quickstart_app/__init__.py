"""An app after Flower's quickstarts, to try two lines on."""
