"""The endpoints of the HTTP door, a file for each noun. Which route leads to which is the table's to say (`routes`)."""
