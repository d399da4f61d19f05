"""One folder a stage; each reads the folder that the stage before it wrote."""
