db = 1;
