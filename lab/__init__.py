"""A network of namespaces with real servers, clients that log what they saw, and a recorder between them."""
