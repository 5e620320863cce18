//! Slows a connection down that exceeds the publish rate of its client, user, address or listener. Its PUBLISH stays in
//! the driver's buffer, and the server does not read from the connection until the tokens are available.

use crate::connections::Connections;
use crate::deliver::ShardCore;
use crate::effect::{ConnectionEvent, Effect, Now};
use crate::publish_buckets::{PublisherIdentity, SharedBuckets};
use crate::publish_quota::Throttling;
use crate::slots::{ConnEpoch, ConnSlot};
use crate::timers::{ShardTimer, Timers};

/// Takes the tokens of a PUBLISH. Returns whether reading from the connection must pause, after setting the timer
/// at which it continues.
pub(crate) fn must_throttle(core: &mut ShardCore, now: Now, conn: ConnSlot, packet_bytes: usize) -> bool {
    let Some(connection) = core.connections.get_mut(conn) else {
        return false;
    };
    let (epoch, slot) = (connection.epoch, connection.session);
    let Some(quota) = connection.publish_quota.as_mut() else {
        return false;
    };
    let limit = match quota.take(now.monotonic_ms, packet_bytes) {
        Ok(()) => return false,
        Err(Throttling::Wait(limit)) => limit,
        Err(Throttling::Yield) => {
            core.effects.push(Effect::Resume { conn });
            return true;
        }
    };
    let timer = ShardTimer::Quota { conn, epoch };
    quota.timer_at_ms = core.timers.wake(now, quota.ready_at_ms, timer);
    core.stats.publishers_slowed[limit as usize] += 1;
    let awaited = quota.awaited().filter(|awaited| awaited.can_report(now.monotonic_ms));
    if let Some((awaited, session)) = awaited.zip(core.sessions.get(slot)) {
        core.effects.push(Effect::Event(ConnectionEvent::Throttled {
            client_id: session.client_id.clone(),
            user_name: session.user_name.clone(),
            owner: awaited.owner.clone(),
            limit,
        }));
    }
    true
}

/// Applies changed limits to all clients. Paused publishers resume, because their waiting time belongs to the old
/// rates.
pub(crate) fn renew_quotas(core: &mut ShardCore, now: Now, shared: &SharedBuckets) {
    let mut controls = Vec::new();
    for (conn, connection) in core.connections.iter_mut().filter(|(_, c)| c.is_online()) {
        if !connection.streams.data_streams().is_empty() {
            controls.push(conn);
        }
        let session = core.sessions.get(connection.session);
        let identity = PublisherIdentity {
            user_name: session.and_then(|session| session.user_name.as_deref()),
            is_device: session.is_some_and(|session| session.inbox_key().is_some()),
            address: connection.peer.address.ip(),
            listener: connection.peer.listener,
        };
        let quota = shared.quota(&core.config.publish_limits, identity, now.monotonic_ms);
        let before = std::mem::replace(&mut connection.publish_quota, quota);
        if before.is_some_and(|quota| quota.throttled_by().is_some()) {
            // The server has not read from it while it was paused.
            connection.heard(now);
            core.effects.push(Effect::Resume { conn });
        }
    }
    for control in controls {
        core.connections.share_quota(control);
    }
}

impl Connections {
    /// Lets the data streams of a connection share its new quota.
    fn share_quota(&mut self, control: ConnSlot) {
        for stream in self.data_streams_of(control) {
            let quota = self.get(control).and_then(|own| own.publish_quota.as_ref());
            let shared = quota.map(|quota| Box::new(quota.for_data_stream()));
            if let Some(stream) = self.get_mut(stream) {
                stream.publish_quota = shared;
            }
        }
    }

    /// Returns whether the connection waits for tokens.
    pub(crate) fn is_throttled(&mut self, now: Now, conn: ConnSlot) -> bool {
        let quota = self.get_mut(conn).and_then(|c| c.publish_quota.as_mut());
        quota.is_some_and(|quota| quota.must_wait(now.monotonic_ms))
    }

    /// The connection has no further complete packet, so that other connections can use the tokens that it has taken in
    /// advance.
    pub(crate) fn give_back_tokens(&mut self, conn: ConnSlot) {
        if let Some(quota) = self.get_mut(conn).and_then(|c| c.publish_quota.as_mut()) {
            quota.give_back();
        }
    }

    /// The timer of a connection that waits for tokens has fired.
    pub(crate) fn quota_due(
        &mut self,
        now: Now,
        conn: ConnSlot,
        epoch: ConnEpoch,
        timers: &mut Timers,
        effects: &mut Vec<Effect>,
    ) {
        let Some(connection) = self.live(conn, epoch) else {
            return;
        };
        let Some(quota) = connection.publish_quota.as_mut().filter(|q| q.throttled_by().is_some()) else {
            return;
        };
        if now.monotonic_ms < quota.ready_at_ms {
            // The timer of an earlier wait, or of a wait that is longer than a timer can be.
            if quota.timer_at_ms <= now.monotonic_ms {
                let timer = ShardTimer::Quota { conn, epoch };
                quota.timer_at_ms = timers.wake(now, quota.ready_at_ms, timer);
            }
            return;
        }
        // The server has not read from it while it was paused.
        connection.heard(now);
        effects.push(Effect::Resume { conn });
    }
}
