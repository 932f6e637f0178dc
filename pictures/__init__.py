"""Pictures of attention and of position schemes."""
