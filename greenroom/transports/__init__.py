"""How providers are reached: ports, processes, codecs. Never imports the actors."""
