//! Settling: faults pause, and everything in transit arrives. Happens during a run to audit retained messages, and at
//! its end to audit everything.

use broker::DropReason;
use mqtt::{ProtocolVersion, QoS, SubscriptionOptions};

use super::World;
use super::acts::DELAY_MAX_S;
use crate::client::{ClientIndex, ClientStage};
use crate::network::{ClientEnd, LinkIndex};
use crate::node::SimulatedNode;
use crate::node_journal::SimulatedJournal;
use crate::packets::ConnectFields;
use crate::plan::PlannedDurability;
use crate::topics::{RETAINED_FILTER, RETAINED_FILTER_TOO};

/// Maximum number of rounds until all activity ends.
const ROUNDS_MAX: usize = 4_000;

/// Number of rounds without activity after which the world counts as settled.
const QUIET_ROUNDS: usize = 6;

impl World {
    /// All clients reconnect and read everything. Messages not received by then are missing.
    pub(super) fn finish(&mut self) {
        self.trace.line(|| "final phase starts".to_owned());
        if self.plan.durability != PlannedDurability::None && self.random.one_in(2) {
            // Crash in the middle of activity.
            self.end_process(self.plan.durability == PlannedDurability::Fsync);
        }
        self.repair();
        self.reconnect_all();
        self.drain_transit();
        self.check_settled();
        self.audit_now();
        if self.plan.durability != PlannedDurability::None && self.oracle.violation.is_none() {
            self.end_process(self.plan.durability == PlannedDurability::Fsync);
            self.repair();
            self.reconnect_all();
            self.drain_transit();
            self.check_settled();
            self.audit_now();
        }
    }

    /// The disk works again, and a node runs on it.
    fn repair(&mut self) {
        self.plan.is_disk_bad = false;
        self.disk.clear_faults();
        let has_failed = |node: &SimulatedNode| node.journal.as_ref().is_some_and(SimulatedJournal::has_failed);
        if self.node.as_ref().is_some_and(has_failed) {
            self.end_process(false);
        }
        self.restart();
    }

    fn reconnect_all(&mut self) {
        for client in ClientIndex::first(self.plan.clients) {
            self.clients[client.index()].is_not_reading = false;
        }
        // Clients notice that their connection is closed. Some start a new session after CONNACK.
        for _ in 0..2 {
            self.drain_transit();
            self.connect_all();
        }
        self.drain_transit();
        if self.plan.has_delays {
            self.wait_for_delays();
        }
        for client in ClientIndex::first(self.plan.clients) {
            if self.clients[client.index()].stage == ClientStage::Online {
                self.with(client, |client, context| client.ping(context));
            }
        }
    }

    /// Waits until all delays have passed, including those of messages that were received late.
    fn wait_for_delays(&mut self) {
        for _ in 0..=DELAY_MAX_S + 1 {
            self.wait(1_000);
            for client in ClientIndex::first(self.clients.len()) {
                self.with(client, |client, context| client.stay_alive(context));
            }
            self.drain_transit();
        }
    }

    fn connect_all(&mut self) {
        for client in ClientIndex::first(self.plan.clients) {
            if self.clients[client.index()].stage == ClientStage::Offline {
                // A client that does not know the state of its session starts a new one, as a real client would have
                // to.
                let clean_start = self.clients[client.index()].has_unknown_session;
                self.connect_with(
                    client,
                    ConnectFields {
                        clean_start,
                        ..last_terms()
                    },
                );
            }
        }
    }

    /// Lets everything in transit arrive, without new actions.
    fn drain_transit(&mut self) {
        let mut quiet = 0;
        for round in 0..ROUNDS_MAX {
            if self.oracle.violation.is_some() || quiet == QUIET_ROUNDS {
                return;
            }
            quiet = if self.settle_round(round) { 0 } else { quiet + 1 };
        }
        self.oracle
            .violated(|| format!("not settled after {ROUNDS_MAX} rounds"));
    }

    fn settle_round(&mut self, round: usize) -> bool {
        self.flush_and_report();
        let workers = self.node.as_ref().map_or(0, |node| node.workers.len());
        for worker in 0..workers {
            self.tick(worker);
        }
        let mut has_moved = false;
        for client in ClientIndex::first(self.clients.len()) {
            has_moved |= self.with(client, |client, context| client.read(usize::MAX, context));
            has_moved |= self.with(client, |client, context| {
                let mut has_answered = false;
                while client.answer(context) {
                    has_answered = true;
                }
                has_answered
            });
        }
        if round % 8 == 7 {
            self.wait(20);
            for client in ClientIndex::first(self.clients.len()) {
                self.with(client, |client, context| client.stay_alive(context));
            }
        }
        let is_read = self.network.links.iter().enumerate().all(|(index, link)| {
            link.is_closed_by_node || link.to_node.is_empty() || self.is_abandoned(LinkIndex(index))
        });
        let is_durable = self.node.as_ref().is_none_or(SimulatedNode::is_durable);
        has_moved || !is_read || !is_durable || self.node.as_ref().is_some_and(|node| node.is_busy(self.clock))
    }

    /// Returns whether the client will never read from this link. The node may wait for it indefinitely.
    fn is_abandoned(&self, link: LinkIndex) -> bool {
        let end = &self.network.links[link.index()];
        end.client_end == ClientEnd::Open && self.clients[end.client.index()].link != Some(link)
    }

    fn flush_and_report(&mut self) {
        self.tap_store.is_full = false;
        if let Some(node) = &self.node {
            node.taps().for_each(|tap| tap.store_all(&mut self.tap_store));
        }
        if let Some(node) = &mut self.node
            && let Some(journal) = &mut node.journal
        {
            journal.flush();
            journal.report_commit();
            if journal.is_durable() {
                self.oracle.all_durable();
            }
        }
    }

    fn check_settled(&mut self) {
        if self.oracle.violation.is_some() {
            return;
        }
        if let Some(unsettled) = self.clients[..self.plan.clients].iter().find(|c| !c.is_settled()) {
            let text = format!("settled, but requests are open: {}", unsettled.unsettled());
            return self.oracle.violated(|| text);
        }
        self.check_sent_again();
        if self.plan.has_tap {
            self.oracle.check_tap(&self.tap_store);
        }
        let drops = self
            .node
            .as_ref()
            .map_or(0, |node| node.stats().drops.iter().sum::<u64>());
        let explained = drops + self.oracle.drops;
        let missing = self.oracle.missing();
        let may_drop =
            self.plan.is_limited || self.plan.has_unreadable_records || self.plan.config.output_buffer_bytes < 10_000;
        let allowed = if may_drop { explained as usize } else { 0 };
        if missing.len() > allowed {
            let reasons = self.node.as_ref().map(reasons_of_drops).unwrap_or_default();
            let text = format!(
                "{} messages missing, {explained} dropped, reasons since the start {reasons:?}: {}",
                missing.len(),
                missing[0]
            );
            self.oracle.violated(|| text);
        }
    }

    fn check_sent_again(&mut self) {
        for client in ClientIndex::first(self.plan.clients) {
            let Some(serial) = self.clients[client.index()].lost_message(self.oracle.crashes) else {
                continue;
            };
            if self.oracle.may_have_expired(serial) || self.plan.is_limited || self.plan.has_unreadable_records {
                continue;
            }
            self.oracle
                .violated(|| format!("client {client} did not receive {serial} again [MQTT-4.4.0-1]"));
        }
    }

    // --- retained messages ---

    /// Audits the retained messages during a run.
    pub(super) fn audit(&mut self) {
        self.disk.clear_faults();
        let may_settle = |node: &SimulatedNode| !node.journal.as_ref().is_some_and(SimulatedJournal::has_failed);
        if self.node.as_ref().is_some_and(may_settle) {
            self.drain_transit();
            self.audit_now();
        }
    }

    fn audit_now(&mut self) {
        if self.oracle.violation.is_some() {
            return;
        }
        let auditor = ClientIndex(self.plan.clients);
        let terms = ConnectFields {
            clean_start: true,
            expiry_s: 0,
            ..last_terms()
        };
        self.clients[auditor.index()].retained.clear();
        self.connect_with(auditor, terms);
        self.drain_transit();
        let options = SubscriptionOptions {
            maximum_qos: QoS::ExactlyOnce,
            ..SubscriptionOptions::default()
        };
        self.with(auditor, |client, context| {
            client.subscribe(RETAINED_FILTER, options, context);
            client.subscribe(RETAINED_FILTER_TOO, options, context);
        });
        self.drain_transit();
        if self.oracle.violation.is_none() {
            let got = std::mem::take(&mut self.clients[auditor.index()].retained);
            self.oracle.check_retained(&got);
        }
        self.with(auditor, |client, context| client.disconnect(None, false, context));
        self.drain_transit();
    }
}

fn reasons_of_drops(node: &SimulatedNode) -> Vec<(&'static str, u64)> {
    let drops = node.stats().drops;
    let reasons = DropReason::ALL
        .into_iter()
        .map(|reason| (reason.name(), drops[reason as usize]));
    reasons.filter(|(_, count)| *count > 0).collect()
}

fn last_terms() -> ConnectFields {
    ConnectFields {
        version: ProtocolVersion::V5,
        clean_start: false,
        keep_alive_s: 0,
        expiry_s: 100_000,
        receive_maximum: 20,
        topic_alias_maximum: 0,
        will: None,
    }
}
