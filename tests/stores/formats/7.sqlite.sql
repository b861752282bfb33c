BEGIN TRANSACTION;
CREATE TABLE cutoffs (
        audience text NOT NULL, subject text NOT NULL, cutoff_time double precision NOT NULL,
        expires_at bigint NOT NULL, PRIMARY KEY (audience, subject)
    );
INSERT INTO "cutoffs" VALUES('mcp-sessions','bobAAAAAAAAAAAAAAAAAAA',1799999995.0,1800003600);
CREATE TABLE items (
        owner text NOT NULL, key blob NOT NULL, value blob NOT NULL, expires_at double precision,
        PRIMARY KEY (owner, key)
    );
INSERT INTO "items" VALUES('ses_xbhxy7du4arhxnnosuokdifj',X'63617274',X'5B22746561225D',NULL);
INSERT INTO "items" VALUES('ses_vnmpkli47atp5lqiesdwlflr',X'63617274',X'5B22746561225D',NULL);
INSERT INTO "items" VALUES('ses_ccllktnbxp5apn7rc2vcj5dp',X'6B',X'31',NULL);
CREATE TABLE sessions (
        ref text NOT NULL PRIMARY KEY, audience text, subject text,
        created_at double precision, expires_at bigint NOT NULL, seen_at double precision, trace text,
        principal_hashes text, at_epoch double precision, reason text, lease_until double precision,
        token bigint, account text, part bigint NOT NULL, hour bigint, bytes bigint NOT NULL DEFAULT 0
    );
INSERT INTO "sessions" VALUES('ses_xbhxy7du4arhxnnosuokdifj','mcp-sessions','aliceAAAAAAAAAAAAAAAAA',1800000000.0,1800003600,1800000000.0,NULL,'of alice',1799913600.0,NULL,NULL,2918836456057298725,'aliceAAAAAAAAAAAAAAAAA mcp-sessions',3,500000,211);
INSERT INTO "sessions" VALUES('ses_4z7zbw5pk4etqhukjh2eb2qh','mcp-sessions',NULL,1800000000.0,1800003600,1800000000.0,NULL,NULL,1799913600.0,NULL,NULL,4176541739710212397,NULL,12,500000,0);
INSERT INTO "sessions" VALUES('ses_vnmpkli47atp5lqiesdwlflr','mcp-sessions','aliceAAAAAAAAAAAAAAAAA',1800000000.0,1800003600,1800000000.0,NULL,NULL,1799913600.0,'deleted',1800000030.0,4066435635413727,'aliceAAAAAAAAAAAAAAAAA mcp-sessions',14,500000,211);
INSERT INTO "sessions" VALUES('ses_znaiajyo6sivpoczgl3cjuqy','mcp-sessions',NULL,NULL,1800003600,NULL,NULL,NULL,1799913600.0,'deleted',NULL,7095970830529363,NULL,14,500000,0);
INSERT INTO "sessions" VALUES('ses_m4gpynpxyf5cst6bbqfk5qsx','mcp-sessions','bobAAAAAAAAAAAAAAAAAAA',1799999990.0,1800003600,1799999990.0,NULL,NULL,1799913600.0,NULL,NULL,2945446853868375330,NULL,9,499999,0);
INSERT INTO "sessions" VALUES('ses_pgzjxeqnsfe3rd6cxhsxltyx','other','aliceAAAAAAAAAAAAAAAAA',1800000000.0,1800003600,1800000000.0,NULL,NULL,1799913600.0,NULL,NULL,1805715954567544837,NULL,1,500000,0);
INSERT INTO "sessions" VALUES('ses_ccllktnbxp5apn7rc2vcj5dp',NULL,NULL,NULL,1800003600,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,13,NULL,202);
INSERT INTO "sessions" VALUES('ses_7pmcx5jpi5e5qmdae7eetqwa','mcp-sessions',NULL,NULL,1800003600,NULL,NULL,NULL,NULL,'deleted',NULL,6655045494217391,NULL,1,NULL,0);
CREATE TABLE store (format bigint NOT NULL, epoch double precision NOT NULL);
INSERT INTO "store" VALUES(7,1799913600.0);
CREATE TABLE usage (
        name text NOT NULL, hour bigint NOT NULL, part bigint NOT NULL, amount bigint NOT NULL,
        PRIMARY KEY (name, hour, part)
    );
INSERT INTO "usage" VALUES('sessions mcp-sessions',500000,12,1);
INSERT INTO "usage" VALUES('data aliceAAAAAAAAAAAAAAAAA mcp-sessions',0,3,211);
INSERT INTO "usage" VALUES('data aliceAAAAAAAAAAAAAAAAA mcp-sessions',0,14,211);
CREATE INDEX sessions_of_all ON sessions (audience, created_at, ref) WHERE created_at IS NOT NULL AND reason IS NULL;
CREATE INDEX sessions_of_one ON sessions (subject, audience, created_at, ref) WHERE created_at IS NOT NULL AND reason IS NULL;
CREATE INDEX sessions_expiring ON sessions (audience, expires_at) WHERE created_at IS NOT NULL AND reason IS NULL;
CREATE INDEX sessions_seen ON sessions (audience, seen_at) WHERE created_at IS NOT NULL AND reason IS NULL;
CREATE INDEX sessions_leased ON sessions (audience, lease_until) WHERE created_at IS NOT NULL AND reason IS NOT NULL;
CREATE INDEX sessions_swept ON sessions (expires_at) WHERE created_at IS NULL;
CREATE INDEX cutoffs_swept ON cutoffs (expires_at);
COMMIT;
