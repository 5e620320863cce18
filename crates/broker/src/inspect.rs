//! Operator interface: read-only views of sessions, subscriptions, retained messages and rejected connections, in pages
//! of bounded size.
//!
//! The driver calls it between ticks on the shard's thread. Each call does a bounded amount of work.

use std::net::SocketAddr;
use std::sync::Arc;

use mqtt::{ProtocolVersion, QoS, SubscriptionOptions};

use crate::access::{ConnectIdentity, LoginGrant};
use crate::authentication::Authentication;
use crate::connection::{Connection, ConnectionPhase};
use crate::deliver::ShardCore;
use crate::delivery::Delivery;
use crate::durable::checkpoint::Checkpoints;
use crate::durable::pending_records::Ledger;
use crate::effect::{DisconnectReason, DropReason, Now, ShardId, Transport};
use crate::message::Message;
use crate::node_state::home_shard;
use crate::owners::SessionHolding;
use crate::publish_limits::PublishLimit;
use crate::rejected_connections::RejectedConnection;
use crate::retained::{RetainedStore, ScanBudget, ScanCursor};
use crate::session::{DropCounts, Session};
use crate::sessions::LOOK_MAX;
use crate::shared::member::ShareGroupMember;
use crate::shared::{ShareGroup, ShareGroups};
use crate::slots::{ConnSlot, SessionRef, SessionSlot};
use crate::stats::ShardStats;
use crate::taps::Taps;

/// A session and, if connected, its connection.
#[derive(Clone, Debug)]
pub struct ClientView {
    pub client_id: String,
    pub user_name: Option<String>,
    pub address: SocketAddr,
    pub transport: Option<Transport>,
    pub listener: Option<u16>,
    pub version: ProtocolVersion,
    pub is_connected: bool,
    pub is_bridge: bool,
    /// Prefix of its topics.
    pub mountpoint: Option<String>,
    pub clean_start: bool,
    pub keep_alive_s: u16,
    pub session_expiry_s: u32,
    pub receive_maximum: u16,
    pub created_at_unix_ms: u64,
    pub connected_at_unix_ms: u64,
    pub disconnected_at_unix_ms: Option<u64>,
    pub subscriptions: usize,
    pub inflight: usize,
    pub queued: usize,
    pub queued_bytes: usize,
    pub awaiting_release: usize,
    pub output_backlog_bytes: usize,
    pub messages_received: u64,
    pub bytes_received: u64,
    pub messages_sent: u64,
    pub bytes_sent: u64,
    pub has_will: bool,
    pub last_disconnect: Option<DisconnectReason>,
    pub drops: Vec<(DropReason, u32)>,
    pub last_drop: Option<(DropReason, u64)>,
    /// Limit of its rate for which the client waits.
    pub throttled_by: Option<PublishLimit>,
}

/// A client with the details that lists omit.
#[derive(Clone, Debug)]
pub struct InspectedClient {
    pub client: ClientView,
    pub will: Option<WillView>,
    /// Maximum Packet Size of CONNECT (MQTT 5), while connected.
    pub maximum_packet_size: Option<u32>,
    /// The first User Properties of CONNECT in wire format.
    pub user_properties: Vec<u8>,
    /// Subject common name of the client certificate, if there is one.
    pub certificate_common_name: Option<String>,
}

#[derive(Clone, Debug)]
pub struct WillView {
    pub topic: String,
    pub qos: QoS,
    pub retain: bool,
    pub delay_s: u32,
    /// Start of the payload.
    pub payload: Vec<u8>,
    pub payload_bytes: usize,
    /// Properties in wire format.
    pub properties: Vec<u8>,
    pub message_expiry_s: Option<u32>,
}

#[derive(Clone, Debug)]
pub struct SubscriptionView {
    pub client_id: String,
    pub filter: String,
    pub options: SubscriptionOptions,
    pub identifier: Option<u32>,
}

#[derive(Clone, Debug)]
pub struct RetainedView {
    pub topic: String,
    pub payload: Vec<u8>,
    pub payload_bytes: usize,
    pub qos: QoS,
    pub properties: Vec<u8>,
    pub expires_in_s: Option<u32>,
}

#[derive(Clone, Debug)]
pub struct SharedGroupView {
    pub share_name: String,
    pub filter: String,
    pub members: usize,
    pub online: usize,
    pub queued: usize,
    pub queued_bytes: usize,
}

/// A member of a group, as far as the group's home shard knows it. The session's shard knows the rest.
#[derive(Clone, Copy, Debug)]
pub struct SharedMemberView {
    pub session: SessionRef,
    pub qos: QoS,
}

/// Selects clients of a list. Empty fields match all. Text fields match substrings and ignore ASCII case. Data streams
/// are not clients.
#[derive(Clone, Debug, Default)]
pub struct ClientFilter {
    pub client_id: Option<String>,
    pub user_name: Option<String>,
    pub address: Option<String>,
    pub is_connected: Option<bool>,
    /// Begin of the mountpoint, with its last slash.
    pub topic_prefix: Option<String>,
}

/// Selects subscriptions of a list. Empty fields match all.
#[derive(Clone, Debug, Default)]
pub struct SubscriptionListFilter {
    /// Part of the topic filter.
    pub filter: Option<String>,
    /// Begin of the mountpoint of the session, with its last slash.
    pub topic_prefix: Option<String>,
}

/// Returns whether the mountpoint of a session begins with a prefix. No prefix matches all sessions.
fn is_below(session: &Session, topic_prefix: Option<&str>) -> bool {
    topic_prefix.is_none_or(|prefix| {
        let mountpoint = session.mountpoint();
        mountpoint.is_some_and(|mountpoint| mountpoint.as_str().starts_with(prefix))
    })
}

impl ClientFilter {
    pub(crate) fn matches(&self, session: &Session) -> bool {
        let has = |text: &str, part: &Option<String>| {
            part.as_ref()
                .is_none_or(|part| text.to_ascii_lowercase().contains(&part.to_ascii_lowercase()))
        };
        !session.is_data_stream()
            && has(&session.client_id, &self.client_id)
            && (self.user_name.is_none() || has(session.user_name.as_deref().unwrap_or(""), &self.user_name))
            && (self.address.is_none() || has(&session.current_address().to_string(), &self.address))
            && self.is_connected.is_none_or(|wanted| wanted == session.conn.is_some())
            && is_below(session, self.topic_prefix.as_deref())
    }
}

/// Read-only queries of the state of a shard.
#[derive(Clone, Copy)]
pub struct ShardInspection<'a> {
    pub(crate) core: &'a ShardCore,
    pub(crate) authentication: &'a Authentication,
    pub(crate) groups: &'a ShareGroups,
    pub(crate) retained: &'a RetainedStore<Arc<Message>>,
    pub(crate) checkpoints: &'a Checkpoints,
}

impl<'a> ShardInspection<'a> {
    pub fn stats(&self) -> ShardStats {
        let mut stats = self.core.stats;
        stats.timers = self.core.timers.len() as u64;
        stats.output_backlog_bytes = self.core.outbox.backlog_bytes() as u64;
        stats
    }

    /// Returns whether a decision about the login of a connection is pending.
    pub fn waits_for_login(self, conn: ConnSlot) -> bool {
        let connection = self.core.connections.get(conn);
        connection.is_some_and(|connection| connection.phase() == ConnectionPhase::Authenticating)
    }

    /// Returns whether the client of a connection is logged in.
    pub fn is_online(self, conn: ConnSlot) -> bool {
        self.core.connections.get(conn).is_some_and(Connection::is_online)
    }

    /// Returns the state of the journal's batch and its waiters.
    pub fn ledger(self) -> &'a Ledger {
        &self.core.ledger
    }

    /// Returns the state of the tap and the inbox.
    pub fn taps(self) -> &'a Taps {
        &self.core.taps
    }

    /// Returns whether a checkpoint is running and not waiting.
    pub fn is_checkpoint_active(&self) -> bool {
        self.checkpoints.is_active()
    }

    /// Returns when `Shard::run_timers` must be called next, in monotonic milliseconds.
    pub fn next_deadline(&self) -> Option<u64> {
        if self.groups.has_work() || !self.core.unfinished.is_empty() {
            return Some(0);
        }
        self.core.timers.next_deadline()
    }

    /// Returns the home shard of the session that a CONNECT leads to. The session's client id may differ from that of
    /// CONNECT.
    pub fn home_shard_of(
        &self,
        connect: &mqtt::Connect<'_>,
        certificate: Option<&[u8]>,
        listener: u16,
    ) -> Option<ShardId> {
        let offered = ConnectIdentity {
            client_id: connect.client_id,
            user_name: connect.user_name,
            password: connect.password,
            certificate,
            listener,
        };
        let name = self.authentication.session_name(&offered);
        home_shard(name.as_deref().unwrap_or(connect.client_id), self.core.shards)
    }

    /// Returns the number of received QoS 1 and 2 messages, each of which needs an acknowledgement.
    pub fn acknowledged_messages(&self) -> u64 {
        let [_, once, exactly_once] = self.core.stats.messages_received;
        once + exactly_once
    }

    /// Returns the rejected connections, newest first.
    pub fn refusals(self) -> impl Iterator<Item = &'a RejectedConnection> {
        self.authentication.rejected()
    }

    /// Returns the connection of a client.
    pub fn connection_of(&self, client_id: &str) -> Option<ConnSlot> {
        self.core.sessions.at(self.core.sessions.slot_of(client_id)?).conn
    }

    /// Returns the grant of a connected client.
    pub fn grant_of(&self, client_id: &str) -> LoginGrant {
        let slot = self.core.sessions.slot_of(client_id);
        let session = slot.map(|slot| self.core.sessions.at(slot));
        let connected = session.filter(|session| session.conn.is_some());
        connected.map_or(LoginGrant::None, |session| session.grant().clone())
    }

    /// Returns whether the client has a session whose mountpoint begins with a prefix.
    pub fn is_client_below(&self, client_id: &str, topic_prefix: &str) -> bool {
        let sessions = &self.core.sessions;
        let slot = sessions.slot_of(client_id);
        slot.is_some_and(|slot| is_below(sessions.at(slot), Some(topic_prefix)))
    }

    /// Returns up to `limit` clients, starting at session slot `from`. The second value is the slot to continue at, if
    /// there are more.
    pub fn clients(
        &self,
        filter: &ClientFilter,
        from: SessionSlot,
        limit: usize,
    ) -> (Vec<ClientView>, Option<SessionSlot>) {
        let mut found = Vec::new();
        for (looked, slot) in from.until(self.core.sessions.end()).enumerate() {
            if found.len() == limit || looked == LOOK_MAX {
                return (found, Some(slot));
            }
            if let Some(session) = self.core.sessions.get(slot).filter(|s| filter.matches(s)) {
                found.push(self.view(slot, session));
            }
        }
        (found, None)
    }

    pub fn client(&self, client_id: &str) -> Option<ClientView> {
        let slot = self.core.sessions.slot_of(client_id)?;
        Some(self.view(slot, self.core.sessions.at(slot)))
    }

    pub fn client_details(&self, client_id: &str, payload_max: usize) -> Option<InspectedClient> {
        let slot = self.core.sessions.slot_of(client_id)?;
        let session = self.core.sessions.at(slot);
        let connection = session.conn.and_then(|conn| self.core.connections.get(conn));
        let will = session.will.as_deref();
        let will = will.map(|will| WillView {
            topic: will.topic.to_string(),
            qos: will.qos,
            retain: will.retain,
            delay_s: will.delay_s,
            payload: will.payload[..will.payload.len().min(payload_max)].to_vec(),
            payload_bytes: will.payload.len(),
            properties: will.properties.to_vec(),
            message_expiry_s: will.message_expiry_s,
        });
        Some(InspectedClient {
            client: self.view(slot, session),
            will,
            maximum_packet_size: connection
                .map(|connection| connection.maximum_packet_size)
                .filter(|size| *size < u32::MAX),
            user_properties: connection.map_or(Vec::new(), |connection| connection.user_properties().to_vec()),
            certificate_common_name: connection
                .and_then(|c| c.peer.certificate_common_name.as_deref().map(str::to_owned)),
        })
    }

    pub(crate) fn view(&self, slot: SessionSlot, session: &Session) -> ClientView {
        let link = self.core.sessions.link(slot);
        let connection = session.conn.and_then(|conn| self.core.connections.get(conn));
        let drops = session.drops();
        let (held, held_bytes) = session.replays.held();
        ClientView {
            client_id: session.client_id.to_string(),
            user_name: session.user_name.as_deref().map(str::to_owned),
            address: session.current_address(),
            transport: connection.map(|c| c.peer.transport),
            listener: connection.map(|c| c.peer.listener),
            version: session.version,
            is_connected: session.conn.is_some(),
            is_bridge: session.is_bridge,
            mountpoint: session.mountpoint().map(|mountpoint| mountpoint.as_str().to_owned()),
            clean_start: session.clean_start,
            keep_alive_s: session.keep_alive_s,
            session_expiry_s: session.expiry_s,
            receive_maximum: session.window,
            created_at_unix_ms: session.created_at_ms,
            connected_at_unix_ms: session.connected_at_ms,
            disconnected_at_unix_ms: session.conn.is_none().then_some(session.disconnected_at_ms),
            subscriptions: session.subscriptions.len(),
            inflight: session.outgoing.unacknowledged(),
            queued: session.outgoing.queued() + held,
            queued_bytes: session.outgoing.queued_bytes.get() + held_bytes,
            awaiting_release: session.received.len(),
            output_backlog_bytes: session.conn.map_or(0, |conn| self.core.outbox.queued_bytes(conn)),
            messages_received: session.messages_received,
            bytes_received: session.bytes_received,
            messages_sent: link.messages_sent,
            bytes_sent: link.bytes_sent,
            has_will: session.will.is_some(),
            last_disconnect: session.last_disconnect,
            drops: drops.map(DropCounts::counted).unwrap_or_default(),
            last_drop: drops.and_then(|d| d.last),
            throttled_by: connection.and_then(|connection| connection.throttled_by()),
        }
    }

    pub fn subscriptions_of(&self, client_id: &str) -> Option<Vec<SubscriptionView>> {
        let slot = self.core.sessions.slot_of(client_id)?;
        let session = self.core.sessions.at(slot);
        let view = |(filter, s): (&str, &crate::session::Subscription)| SubscriptionView {
            client_id: client_id.to_owned(),
            filter: filter.to_owned(),
            options: s.options,
            identifier: s.identifier,
        };
        Some(session.subscriptions.iter().map(view).collect())
    }

    /// Returns subscriptions of the sessions from slot `from` on: whole sessions, until at least `limit` are found.
    pub fn subscriptions(
        &self,
        matching: &SubscriptionListFilter,
        from: SessionSlot,
        limit: usize,
    ) -> (Vec<SubscriptionView>, Option<SessionSlot>) {
        let mut found = Vec::new();
        for (looked, slot) in from.until(self.core.sessions.end()).enumerate() {
            if found.len() >= limit || looked == LOOK_MAX {
                return (found, Some(slot));
            }
            let session = self.core.sessions.get(slot);
            let Some(session) = session.filter(|session| is_below(session, matching.topic_prefix.as_deref())) else {
                continue;
            };
            for (filter, s) in session.subscriptions.iter() {
                if matching.filter.as_ref().is_none_or(|part| filter.contains(part)) {
                    found.push(SubscriptionView {
                        client_id: session.client_id.to_string(),
                        filter: filter.to_owned(),
                        options: s.options,
                        identifier: s.identifier,
                    });
                }
            }
        }
        (found, None)
    }

    /// Adds up the bytes of all queued messages of sessions and groups. Equals `ShardStats::queued_bytes`. For tests.
    pub fn sum_of_queued_bytes(&self) -> u64 {
        let groups = self.groups.iter().map(|group| group.queue().sum_of_bytes());
        self.sum_over_sessions(|_| true) + groups.sum::<usize>() as u64
    }

    /// Adds up the bytes of all queued messages of an owner's sessions. The sum over all shards equals
    /// `UserAccount::queued_bytes` if the owner has a limit. For tests.
    pub fn sum_of_queued_bytes_of(&self, owner: &str) -> u64 {
        self.sum_over_sessions(|slot| {
            let user = self.core.sessions.holding(slot).and_then(SessionHolding::user);
            user.is_some_and(|user| user.name() == owner)
        })
    }

    fn sum_over_sessions(&self, is_wanted: impl Fn(SessionSlot) -> bool) -> u64 {
        let slots = SessionSlot::FIRST.until(self.core.sessions.end());
        let sessions = slots.filter(|slot| is_wanted(*slot));
        let sessions = sessions.filter_map(|slot| self.core.sessions.get(slot));
        let bytes = sessions.map(|session| {
            let held = session.replays.held_messages().map(Delivery::stored_bytes);
            session.outgoing.sum_of_queued_bytes() + held.sum::<usize>()
        });
        bytes.sum::<usize>() as u64
    }

    pub fn shared_groups(&self, limit: usize) -> Vec<SharedGroupView> {
        self.shared_groups_below("", limit)
    }

    /// Returns up to `limit` groups whose filter begins with a prefix.
    pub fn shared_groups_below(&self, topic_prefix: &str, limit: usize) -> Vec<SharedGroupView> {
        let view = |group: &ShareGroup| SharedGroupView {
            share_name: group.share_name().to_owned(),
            filter: group.filter().to_owned(),
            members: group.members().len(),
            online: group.members().iter().filter(|m| m.is_online()).count(),
            queued: group.queue().len(),
            queued_bytes: group.queue().bytes(),
        };
        let wanted = self
            .groups
            .iter()
            .filter(|group| group.filter().starts_with(topic_prefix));
        wanted.take(limit).map(view).collect()
    }

    /// Returns up to `limit` members in the order in which they joined, and their total number. `None` if the group is
    /// not on this shard.
    pub fn shared_members(
        &self,
        share_name: &str,
        filter: &str,
        limit: usize,
    ) -> Option<(Vec<SharedMemberView>, usize)> {
        let group = self.groups.find(share_name, filter)?;
        let view = |member: &ShareGroupMember| SharedMemberView {
            session: member.session(),
            qos: member.maximum_qos(),
        };
        let members = group.members().iter().take(limit).map(view);
        Some((members.collect(), group.members().len()))
    }

    /// Returns the members whose sessions are on this shard and still exist.
    pub fn clients_of(&self, members: &[SharedMemberView]) -> Vec<(SharedMemberView, ClientView)> {
        let view = |member: &SharedMemberView| {
            let SessionRef {
                session: slot, epoch, ..
            } = member.session;
            let session = self.core.sessions.get(slot)?;
            (session.epoch == epoch).then(|| (*member, self.view(slot, session)))
        };
        members.iter().filter_map(view).collect()
    }

    /// Returns matching retained messages of this shard, with at most `payload_max` bytes of each payload.
    pub fn retained(
        &self,
        now: Now,
        filter: &str,
        cursor: Option<ScanCursor>,
        limit: usize,
        payload_max: usize,
    ) -> (Vec<RetainedView>, Option<ScanCursor>) {
        let mut found = Vec::new();
        let budget = ScanBudget {
            matches_max: limit,
            steps_max: LOOK_MAX,
        };
        let next = self
            .retained
            .scan(filter, cursor, now.monotonic_ms, budget, |topic, message| {
                found.push(retained_view(now, topic, message, payload_max));
            });
        // The cursor contains the next topic, which the reader of the list may not be allowed to see.
        (found, next.filter(|cursor| !cursor.is_past(filter)))
    }

    /// Returns the retained message of a topic, if this shard owns the topic.
    pub fn retained_message(&self, now: Now, topic: &str) -> Option<RetainedView> {
        let message = self.retained.get(topic, now.monotonic_ms)?;
        Some(retained_view(now, topic, message, usize::MAX))
    }
}

fn retained_view(now: Now, topic: &str, message: &Message, payload_max: usize) -> RetainedView {
    let p = message.publication();
    RetainedView {
        topic: topic.to_owned(),
        payload: p.payload[..p.payload.len().min(payload_max)].to_vec(),
        payload_bytes: p.payload.len(),
        qos: p.qos,
        properties: p.properties.to_vec(),
        expires_in_s: p.remaining_expiry_s(now),
    }
}
