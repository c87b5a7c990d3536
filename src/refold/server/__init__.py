"""The doors onto the services: HTTP, WebSocket and stdio, and who holds them open."""
