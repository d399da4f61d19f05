"""`webtext plan`: what a corpus takes in time, disk, memory and money, by rates measured on this machine."""
