"""The probe, on servers that are right, and on one that is wrong in whichever way a test asks for."""
