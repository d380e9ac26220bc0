"""Children behind another service: followed, asked, answered and stopped over the wire."""
