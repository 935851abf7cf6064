"""What `cherenkov.Engine` is made of: requests, tickets, lanes in company, admission, sessions."""
