"""What a run will cost and teach, from shapes alone: nothing private is read."""
