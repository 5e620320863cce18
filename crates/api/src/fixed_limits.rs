//! Limits of the HTTP side without an option, for the page `docs/reference/limits.md`: what, how much, unit.

use crate::config::ApiLimits;
use crate::endpoints::{console_users, publish};
use crate::{
    alarms, api_keys, app, audit, device_api, log_ring, logins, paging, server, sys_publisher, thingsboard, trace,
};

pub fn fixed_limits() -> Vec<(&'static str, u64, &'static str)> {
    let limits = ApiLimits::default();
    let mut all = vec![
        ("HTTP connections", limits.connections_max as u64, ""),
        ("Requests at the same time", limits.requests_max as u64, ""),
        ("Time for the header of a request", limits.header_timeout.as_secs(), "s"),
        ("Time for the body of a request", limits.body_timeout.as_secs(), "s"),
        ("Time for an answer", limits.request_timeout.as_secs(), "s"),
        (
            "Time without progress in reading an answer",
            limits.write_stall_timeout.as_secs(),
            "s",
        ),
        ("Lifetime of a connection", limits.connection_lifetime.as_secs(), "s"),
        ("Header of a request", server::HEADER_BYTES_MAX as u64, "bytes"),
        ("URL of a request", server::URI_BYTES_MAX as u64, "bytes"),
        ("Body of a request of a device", device_api::BODY_MAX as u64, "bytes"),
        ("Entries of a page of a list", paging::LIMIT_MAX as u64, ""),
        (
            "Messages of `POST /api/v1/publish/bulk`",
            publish::BULK_MESSAGES_MAX as u64,
            "",
        ),
        ("Logins", logins::LOGINS_MAX as u64, ""),
        ("Logins of a user", logins::LOGINS_PER_USER_MAX as u64, ""),
        ("Users of the console", console_users::USERS_MAX as u64, ""),
        ("API keys", api_keys::KEYS_MAX as u64, ""),
        ("Viewers of live numbers", app::VIEWERS_MAX as u64, ""),
        ("Downloads of backups at the same time", app::DOWNLOADS_MAX as u64, ""),
        ("Entries of a trace per second", trace::PER_SECOND_MAX.into(), ""),
        ("Payload that a trace shows", trace::PAYLOAD_BYTES_MAX as u64, "bytes"),
        ("File of the audit log", audit::FILE_BYTES_MAX, "bytes"),
        (
            "Ended alarms of the node that the server lists",
            alarms::ENDED_MAX as u64,
            "",
        ),
        (
            "Log lines that the server stores for the console",
            log_ring::LINES_MAX as u64,
            "",
        ),
        (
            "Log lines that the server stores, all together",
            log_ring::BYTES_MAX as u64,
            "bytes",
        ),
        (
            "`$SYS` messages about clients that wait",
            sys_publisher::EVENTS_MAX as u64,
            "",
        ),
    ];
    all.extend(thingsboard::FIXED_LIMITS);
    all
}
