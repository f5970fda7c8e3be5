-- The part of kernelbot's database that a submission's results touch or hang on:
-- its tables as they are after the migration of 2026-07-26 (application
-- validation), with the keys, defaults and checks that decide what may be
-- written and removed. Indexes that only make queries fast are left out.
CREATE SCHEMA leaderboard;
SET search_path = leaderboard;

CREATE TABLE leaderboard (
	id            serial PRIMARY KEY,
	name          text NOT NULL UNIQUE,
	deadline      timestamptz NOT NULL,
	task          jsonb NOT NULL,
	creator_id    bigint NOT NULL DEFAULT -1,
	forum_id      bigint NOT NULL,
	secret_seed   bigint NOT NULL DEFAULT floor(random() * 2147483648),
	description   text,
	visibility    text NOT NULL DEFAULT 'public',
	task_version  int NOT NULL DEFAULT 1
);

CREATE TABLE gpu_type (
	leaderboard_id  int NOT NULL REFERENCES leaderboard,
	gpu_type        text NOT NULL,
	PRIMARY KEY (leaderboard_id, gpu_type)
);

CREATE TABLE templates (
	id              serial PRIMARY KEY,
	leaderboard_id  int NOT NULL REFERENCES leaderboard,
	lang            text NOT NULL,
	code            text NOT NULL
);

CREATE TABLE rate_limit (
	id                        serial PRIMARY KEY,
	leaderboard_id            int NOT NULL REFERENCES leaderboard ON DELETE CASCADE,
	mode_category             text NOT NULL CHECK (mode_category IN ('test', 'leaderboard')),
	max_submissions_per_hour  int NOT NULL CHECK (max_submissions_per_hour >= 0),
	UNIQUE (leaderboard_id, mode_category)
);

-- user_id is Discord's, as text.
CREATE TABLE user_info (
	id           text PRIMARY KEY,
	user_name    text,
	cli_id       varchar(255) DEFAULT NULL,
	cli_valid    boolean DEFAULT FALSE,
	web_auth_id  varchar(255) DEFAULT NULL,
	is_banned    boolean NOT NULL DEFAULT FALSE
);

-- The same text is kept once.
CREATE TABLE code_files (
	id        serial PRIMARY KEY,
	old_code  text,
	code      bytea NOT NULL,
	hash      text GENERATED ALWAYS AS (encode(sha256(code), 'hex')) STORED NOT NULL UNIQUE
);

CREATE TABLE submission (
	id               serial PRIMARY KEY,
	leaderboard_id   int NOT NULL REFERENCES leaderboard,
	file_name        text NOT NULL,
	user_id          text NOT NULL REFERENCES user_info,
	code_id          int NOT NULL REFERENCES code_files,
	submission_time  timestamptz NOT NULL,
	done             boolean DEFAULT FALSE,
	mode_category    text
);

CREATE TABLE submission_job_status (
	id              serial PRIMARY KEY,
	submission_id   int NOT NULL UNIQUE REFERENCES submission ON DELETE CASCADE,
	status          varchar(255),
	error           text,
	created_at      timestamptz NOT NULL DEFAULT now(),
	last_heartbeat  timestamptz
);

CREATE TABLE submission_audit (
	id             serial PRIMARY KEY,
	submission_id  int NOT NULL UNIQUE REFERENCES submission ON DELETE CASCADE,
	is_cheating    boolean NOT NULL,
	explanation    text NOT NULL,
	model          text NOT NULL,
	created_at     timestamptz NOT NULL DEFAULT now(),
	reviewed       boolean NOT NULL DEFAULT FALSE
);

CREATE TABLE milestones (
	id              serial PRIMARY KEY,
	leaderboard_id  int NOT NULL REFERENCES leaderboard ON DELETE CASCADE,
	name            text NOT NULL,
	code            text NOT NULL,
	description     text,
	created_at      timestamptz NOT NULL DEFAULT now(),
	UNIQUE (leaderboard_id, name)
);

-- A run belongs to a submission or to a milestone.
CREATE TABLE runs (
	id             serial PRIMARY KEY,
	submission_id  int REFERENCES submission,
	milestone_id   int REFERENCES milestones ON DELETE CASCADE,
	start_time     timestamptz NOT NULL,
	end_time       timestamptz NOT NULL,
	mode           text NOT NULL,
	secret         boolean NOT NULL,
	runner         text NOT NULL,
	score          numeric,
	passed         boolean NOT NULL,
	compilation    jsonb,
	meta           jsonb,
	result         jsonb,
	system_info    jsonb NOT NULL,
	task_version   int NOT NULL DEFAULT 1,
	CONSTRAINT runs_single_parent CHECK ((submission_id IS NULL) <> (milestone_id IS NULL))
);
