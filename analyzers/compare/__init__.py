"""Two or more measurements of a training compared: figures with intervals, a budget of terms, what changed besides."""
