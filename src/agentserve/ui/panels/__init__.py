"""Pure drawing: domain values in, styled lines of a fixed width out; no Textual, no clock."""
