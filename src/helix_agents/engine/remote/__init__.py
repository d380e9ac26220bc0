"""Children behind another service: followed, questioned, answered and stopped over the wire."""
