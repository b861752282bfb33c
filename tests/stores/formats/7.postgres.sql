CREATE SCHEMA mcp_sessions;
CREATE TABLE mcp_sessions.cutoffs (
    audience text NOT NULL COLLATE pg_catalog."C",
    subject text NOT NULL COLLATE pg_catalog."C",
    cutoff_time double precision NOT NULL,
    expires_at bigint NOT NULL
);
CREATE TABLE mcp_sessions.items (
    owner text NOT NULL COLLATE pg_catalog."C",
    key bytea NOT NULL,
    value bytea NOT NULL,
    expires_at double precision
);
CREATE TABLE mcp_sessions.sessions (
    ref text NOT NULL COLLATE pg_catalog."C",
    audience text COLLATE pg_catalog."C",
    subject text COLLATE pg_catalog."C",
    created_at double precision,
    expires_at bigint NOT NULL,
    seen_at double precision,
    trace text COLLATE pg_catalog."C",
    principal_hashes text COLLATE pg_catalog."C",
    at_epoch double precision,
    reason text COLLATE pg_catalog."C",
    lease_until double precision,
    token bigint,
    account text COLLATE pg_catalog."C",
    part bigint NOT NULL,
    hour bigint,
    bytes bigint DEFAULT 0 NOT NULL
);
CREATE TABLE mcp_sessions.store (
    format bigint NOT NULL,
    epoch double precision NOT NULL
);
CREATE TABLE mcp_sessions.usage (
    name text NOT NULL COLLATE pg_catalog."C",
    hour bigint NOT NULL,
    part bigint NOT NULL,
    amount bigint NOT NULL
);
INSERT INTO mcp_sessions.cutoffs VALUES ('mcp-sessions', 'bobAAAAAAAAAAAAAAAAAAA', 1799999995, 1800003600);
INSERT INTO mcp_sessions.items VALUES ('ses_xbhxy7du4arhxnnosuokdifj', '\x63617274', '\x5b22746561225d', NULL);
INSERT INTO mcp_sessions.items VALUES ('ses_vnmpkli47atp5lqiesdwlflr', '\x63617274', '\x5b22746561225d', NULL);
INSERT INTO mcp_sessions.items VALUES ('ses_ccllktnbxp5apn7rc2vcj5dp', '\x6b', '\x31', NULL);
INSERT INTO mcp_sessions.sessions VALUES ('ses_4z7zbw5pk4etqhukjh2eb2qh', 'mcp-sessions', NULL, 1800000000, 1800003600, 1800000000, NULL, NULL, 1799913600, NULL, NULL, 1624981919505743612, NULL, 12, 500000, 0);
INSERT INTO mcp_sessions.sessions VALUES ('ses_m4gpynpxyf5cst6bbqfk5qsx', 'mcp-sessions', 'bobAAAAAAAAAAAAAAAAAAA', 1799999990, 1800003600, 1799999990, NULL, NULL, 1799913600, NULL, NULL, 3747166054638204649, NULL, 9, 499999, 0);
INSERT INTO mcp_sessions.sessions VALUES ('ses_pgzjxeqnsfe3rd6cxhsxltyx', 'other', 'aliceAAAAAAAAAAAAAAAAA', 1800000000, 1800003600, 1800000000, NULL, NULL, 1799913600, NULL, NULL, 1677228338365539516, NULL, 1, 500000, 0);
INSERT INTO mcp_sessions.sessions VALUES ('ses_xbhxy7du4arhxnnosuokdifj', 'mcp-sessions', 'aliceAAAAAAAAAAAAAAAAA', 1800000000, 1800003600, 1800000000, NULL, 'of alice', 1799913600, NULL, NULL, 4564805301722891835, 'aliceAAAAAAAAAAAAAAAAA mcp-sessions', 3, 500000, 211);
INSERT INTO mcp_sessions.sessions VALUES ('ses_ccllktnbxp5apn7rc2vcj5dp', NULL, NULL, NULL, 1800003600, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 13, NULL, 202);
INSERT INTO mcp_sessions.sessions VALUES ('ses_vnmpkli47atp5lqiesdwlflr', 'mcp-sessions', 'aliceAAAAAAAAAAAAAAAAA', 1800000000, 1800003600, 1800000000, NULL, NULL, 1799913600, 'deleted', 1800000030, 8941166094107745, 'aliceAAAAAAAAAAAAAAAAA mcp-sessions', 14, 500000, 211);
INSERT INTO mcp_sessions.sessions VALUES ('ses_znaiajyo6sivpoczgl3cjuqy', 'mcp-sessions', NULL, NULL, 1800003600, NULL, NULL, NULL, 1799913600, 'deleted', NULL, 8878473869722513, NULL, 14, 500000, 0);
INSERT INTO mcp_sessions.sessions VALUES ('ses_7pmcx5jpi5e5qmdae7eetqwa', 'mcp-sessions', NULL, NULL, 1800003600, NULL, NULL, NULL, NULL, 'deleted', NULL, 3549950855329725, NULL, 1, NULL, 0);
INSERT INTO mcp_sessions.store VALUES (7, 1799913600);
INSERT INTO mcp_sessions.usage VALUES ('sessions mcp-sessions', 500000, 12, 1);
INSERT INTO mcp_sessions.usage VALUES ('data aliceAAAAAAAAAAAAAAAAA mcp-sessions', 0, 3, 211);
INSERT INTO mcp_sessions.usage VALUES ('data aliceAAAAAAAAAAAAAAAAA mcp-sessions', 0, 14, 211);
ALTER TABLE ONLY mcp_sessions.cutoffs
    ADD CONSTRAINT cutoffs_pkey PRIMARY KEY (audience, subject);
ALTER TABLE ONLY mcp_sessions.items
    ADD CONSTRAINT items_pkey PRIMARY KEY (owner, key);
ALTER TABLE ONLY mcp_sessions.sessions
    ADD CONSTRAINT sessions_pkey PRIMARY KEY (ref);
ALTER TABLE ONLY mcp_sessions.usage
    ADD CONSTRAINT usage_pkey PRIMARY KEY (name, hour, part);
CREATE INDEX cutoffs_swept ON mcp_sessions.cutoffs USING btree (expires_at);
CREATE INDEX sessions_expiring ON mcp_sessions.sessions USING btree (audience, expires_at) WHERE ((created_at IS NOT NULL) AND (reason IS NULL));
CREATE INDEX sessions_leased ON mcp_sessions.sessions USING btree (audience, lease_until) WHERE ((created_at IS NOT NULL) AND (reason IS NOT NULL));
CREATE INDEX sessions_of_all ON mcp_sessions.sessions USING btree (audience, created_at, ref) WHERE ((created_at IS NOT NULL) AND (reason IS NULL));
CREATE INDEX sessions_of_one ON mcp_sessions.sessions USING btree (subject, audience, created_at, ref) WHERE ((created_at IS NOT NULL) AND (reason IS NULL));
CREATE INDEX sessions_seen ON mcp_sessions.sessions USING btree (audience, seen_at) WHERE ((created_at IS NOT NULL) AND (reason IS NULL));
CREATE INDEX sessions_swept ON mcp_sessions.sessions USING btree (expires_at) WHERE (created_at IS NULL);
