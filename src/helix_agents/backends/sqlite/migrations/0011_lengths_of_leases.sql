-- How long a lease lasts from its renewal on, so that one is recognised that was written before the clock was set back.
ALTER TABLE __agents_leases ADD COLUMN ttl_ms INTEGER;
