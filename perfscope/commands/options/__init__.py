"""Options that several commands share, as groups: the model, its dimensions, the peak of the GPU, the training.

``groups`` lets typer see the fields of a group as options, and ``common`` has the option of every command.
"""
