"""The ground: errors, files, lines, command lines, the machine, the hub, tables."""
