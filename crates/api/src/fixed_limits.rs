//! Limits of the HTTP side without an option, for the page `docs/reference/limits.md`: what, how much, unit, and what
//! happens beyond.

use web::limits::ApiLimits;
use web::{answer_memory, api_keys, audit, logins, paging, pending_logins, server};

use crate::endpoints::{console_users, publish};
use crate::{alarms, concurrency, device_platform, log_ring, sys_publisher, trace};

const REFUSED: &str = "A further one is refused (422).";
const CLOSED: &str = "The server closes the connection.";

pub fn fixed_limits() -> Vec<(&'static str, u64, &'static str, &'static str)> {
    let limits = ApiLimits::default();
    let mut all = vec![
        (
            "Open HTTP connections per listener; fewer if the limit of open files is below 32,768",
            limits.connections_max as u64,
            "",
            "The server closes a connection without a request. If there is none, the further one can only request `/livez`, `/readyz` and `/status`; other requests receive 503.",
        ),
        (
            "HTTP connections for health checks beyond the limits",
            web::RESERVED_MAX as u64,
            "",
            "The server closes one without a request, or refuses the further connection.",
        ),
        (
            "Requests that are processed at the same time, without health checks",
            limits.requests_max as u64,
            "",
            "A further request receives 503.",
        ),
        (
            "Requests of one address that are processed at the same time: the same share as that of its connections (`api.max_connections_per_address`)",
            limits.requests_per_address_max() as u64,
            "",
            "A further request receives 503.",
        ),
        (
            "Time to receive the header of a request, or to complete the TLS handshake",
            limits.header_timeout.as_secs(),
            "s",
            CLOSED,
        ),
        (
            "Time to receive the body of a request",
            limits.body_timeout.as_secs(),
            "s",
            "The request receives 408.",
        ),
        (
            "Time from the header of a request to the start of its answer",
            limits.request_timeout.as_secs(),
            "s",
            "The request receives 503.",
        ),
        (
            "Time in which a client reads nothing of an answer",
            limits.write_stall_timeout.as_secs(),
            "s",
            CLOSED,
        ),
        (
            "Time until the end of an answer while other answers do not fit into `api.max_unsent_answers`",
            answer_memory::UNREAD_MAX.as_secs(),
            "s",
            "The server closes the connection of the oldest answer.",
        ),
        (
            "Size of an answer that does not count in `api.max_unsent_answers`",
            answer_memory::SMALL_BYTES as u64,
            "bytes",
            "A larger answer counts until the client has received it. A streamed answer counts with 1 MiB.",
        ),
        (
            "Lifetime of an HTTP connection",
            limits.connection_lifetime.as_secs(),
            "s",
            "The server closes the connection after the current answer. WebSockets stay open.",
        ),
        (
            "Size of the header of a request",
            server::HEADER_BYTES_MAX as u64,
            "bytes",
            "The request receives 431.",
        ),
        (
            "Length of the URL of a request",
            server::URI_BYTES_MAX as u64,
            "bytes",
            "The request receives 414.",
        ),
        (
            "Entries on a page of a list: highest `limit`",
            paging::LIMIT_MAX as u64,
            "",
            "The request is refused (400).",
        ),
        (
            "Messages of a request to `POST /api/v1/publish/bulk`",
            publish::BULK_MESSAGES_MAX as u64,
            "",
            "The request is refused (422).",
        ),
        (
            "Open logins of all users",
            logins::LOGINS_MAX as u64,
            "",
            "The login that expires first ends.",
        ),
        (
            "Open logins of a user",
            logins::LOGINS_PER_USER_MAX as u64,
            "",
            "The user's login that expires first ends.",
        ),
        (
            "Logins that an identity provider has confirmed, and that the console has not collected",
            pending_logins::PENDING_MAX as u64,
            "",
            "The client with the most loses its oldest.",
        ),
        ("Console users", console_users::USERS_MAX as u64, "", REFUSED),
        ("API keys", api_keys::KEYS_MAX as u64, "", REFUSED),
        (
            "WebSockets of `/api/v1/live`, `/trace` and `/tail`, together",
            concurrency::VIEWERS_MAX as u64,
            "",
            "A further WebSocket is refused (503).",
        ),
        (
            "Downloads of backups at the same time",
            concurrency::DOWNLOADS_MAX as u64,
            "",
            "A further download is refused (503).",
        ),
        (
            "Entries per second that a packet trace can request",
            trace::PER_SECOND_MAX.into(),
            "",
            "The request is refused (422).",
        ),
        (
            "Part of a payload that a packet trace shows",
            trace::PAYLOAD_BYTES_MAX as u64,
            "bytes",
            "The request is refused (422).",
        ),
        (
            "Size of a file of the audit log",
            audit::FILE_BYTES_MAX,
            "bytes",
            "A new file begins. The server keeps the current file and the last four.",
        ),
        (
            "Ended alarms of the node in the list",
            alarms::ENDED_MAX as u64,
            "",
            "The oldest entry is removed.",
        ),
        (
            "Log lines in memory, for the console",
            log_ring::LINES_MAX as u64,
            "",
            "The oldest line is removed. The log itself is not limited.",
        ),
        (
            "Size of the log lines in memory",
            log_ring::BYTES_MAX as u64,
            "bytes",
            "The oldest line is removed.",
        ),
        (
            "Queue of events about clients for `$SYS`",
            sys_publisher::EVENTS_MAX as u64,
            "",
            "Further events are dropped and counted.",
        ),
    ];
    all.extend(device_platform::fixed_limits());
    all
}
