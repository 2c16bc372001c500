"""The three services and the `leco` command. They know each other only through proto/."""
