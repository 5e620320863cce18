//! Bans clients that connect and disconnect too often.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use api::AccessAdmin;
use auth::{Ban, BanKind, EXACT_BANS_MAX, FlappingDetector};
use broker::{ConnectionEvent, DisconnectReason};

use super::access::NodeAccess;
use crate::config::files::chain;
use crate::config::options::access::FlappingOptions;

/// Maximum number of bans of the detection. The others are for administrators.
const OWN_BANS_MAX: usize = EXACT_BANS_MAX / 2;

/// Name in the list of bans.
const BANNED_BY: &str = "flapping detection";

pub struct FlappingBans {
    detector: FlappingDetector,
    max_count: u32,
    window: Duration,
    ban_time: Duration,
    access: Arc<NodeAccess>,
}

impl FlappingBans {
    /// `None` if the detection is off.
    pub fn new(options: &FlappingOptions, access: Arc<NodeAccess>) -> Option<FlappingBans> {
        options.enabled.then(|| FlappingBans {
            detector: FlappingDetector::new(options.window, options.max_count),
            max_count: options.max_count,
            window: options.window,
            ban_time: options.ban_time,
            access,
        })
    }

    /// Returns the client id if the event is the disconnect that is one too many. Does not block.
    pub fn flapping_client<'a>(&self, event: &'a ConnectionEvent) -> Option<&'a str> {
        let ConnectionEvent::Disconnected { client_id, reason, .. } = event else {
            return None;
        };
        let is_counted = !matches!(reason, DisconnectReason::Kicked | DisconnectReason::ServerShuttingDown);
        (is_counted && self.detector.disconnected(client_id, Instant::now())).then_some(client_id)
    }

    /// Bans the client for a time. Writes to the disk.
    pub fn ban(&self, client_id: &str) {
        let now_unix_ms = unix_ms();
        let ban = Ban {
            kind: BanKind::ClientId,
            who: client_id.to_owned(),
            reason: format!("{} disconnects within {} s", self.max_count, self.window.as_secs()),
            by: BANNED_BY.to_owned(),
            at_unix_ms: now_unix_ms,
            until_unix_ms: Some(now_unix_ms.saturating_add(self.ban_time.as_millis() as u64)),
        };
        let (disconnects, ban_s) = (self.max_count, self.ban_time.as_secs());
        let bans = self.access.bans().list(now_unix_ms);
        if bans.iter().filter(|ban| ban.by == BANNED_BY).count() >= OWN_BANS_MAX {
            tracing::error!(
                client_id,
                "a client connects too often, but too many clients are banned for it already"
            );
            return;
        }
        match self.access.bans().add(ban, now_unix_ms) {
            Ok(_) => tracing::warn!(
                client_id,
                disconnects,
                ban_s,
                "a client connects too often: it is banned"
            ),
            Err(error) => {
                let error = chain(&error);
                tracing::error!(client_id, error, "a client connects too often, but cannot be banned");
            }
        }
    }
}

fn unix_ms() -> u64 {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since_1970.as_millis() as u64
}
