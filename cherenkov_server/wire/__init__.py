"""What goes over the wire: requests as Pydantic types, answers, refusals."""
