-- Tables of a release (texts, urls) and of the version before (old_urls, old_removed), which exist already.
CREATE TEMP VIEW new AS SELECT id, min(text_sha256) AS hash FROM urls WHERE outcome = 'kept' GROUP BY id;
CREATE TEMP VIEW old AS SELECT id, min(text_sha256) AS hash FROM old_urls WHERE outcome = 'kept' GROUP BY id;
CREATE TEMP VIEW changes AS
SELECT
    count(*) FILTER (old.id IS NULL) AS added,
    count(*) FILTER (new.id IS NULL) AS removed,
    count(*) FILTER (old.hash <> new.hash) AS changed
FROM old FULL JOIN new USING (id);
-- Days in UTC, whatever the time zone of the session.
CREATE TEMP MACRO day(microseconds) AS strftime(make_timestamp(microseconds), '%Y-%m-%d');
CREATE TEMP VIEW days AS
SELECT
    day(epoch_us(min(fetched_at))) AS first,
    day(epoch_us(max(fetched_at))) AS last,
    day(min(nullif(created_utc, 0)) * 1000000) AS first_created,
    day(max(nullif(created_utc, 0)) * 1000000) AS last_created
FROM urls;
-- Documents of earlier versions, and those that were removed on request, that are not in this one.
CREATE TEMP MACRO removed_until(today) AS TABLE
SELECT id, max(reason) AS reason, min(date) AS date
FROM (
    SELECT id, coalesce(outcome, 'removed') AS reason, today AS date FROM old LEFT JOIN urls USING (id)
    UNION ALL SELECT id, reason, today FROM dropped WHERE reason = 'removed'
    UNION ALL SELECT id, 'removed', today FROM requested
    UNION ALL FROM old_removed
)
WHERE id NOT IN (SELECT id FROM new) GROUP BY id ORDER BY id
