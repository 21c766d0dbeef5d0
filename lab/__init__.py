"""A network of namespaces with real servers, clients that log what they see, and a recorder between them."""
