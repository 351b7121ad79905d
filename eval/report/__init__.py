"""Tables, pictures and a report from run folders."""
