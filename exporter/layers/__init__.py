"""What only some layers have: experts, kinds of attention, and mixers in the place of attention."""
