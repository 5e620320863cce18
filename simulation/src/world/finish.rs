//! Settling: the faults pause, and what is under way arrives. In the middle of a run to look at what is retained, at its end for
//! everything.

use broker::DropReason;
use mqtt::{ProtocolVersion, QoS, SubscriptionOptions};

use super::World;
use super::acts::DELAY_MAX_S;
use crate::client::Stage;
use crate::keeper::Keeper;
use crate::network::ClientEnd;
use crate::node::Node;
use crate::plan::Durability;
use crate::speak::Terms;
use crate::words::{RETAINED_FILTER, RETAINED_FILTER_TOO};

/// Rounds in which everything that can move must have.
const ROUNDS_MAX: usize = 4_000;

/// Rounds without anything new after which nothing is expected any more.
const QUIET_ROUNDS: usize = 6;

impl World {
    /// Everybody comes back and reads everything; then what is missing is missing.
    pub(super) fn finish(&mut self) {
        self.trace.line(|| "the end begins".to_owned());
        if self.plan.durability != Durability::None && self.random.one_in(2) {
            // In the middle of everything.
            self.end_process(self.plan.durability == Durability::Fsync);
        }
        self.repair();
        self.come_back();
        self.settle();
        self.check_settled();
        self.audit_now();
        if self.plan.durability != Durability::None && self.oracle.violation.is_none() {
            self.end_process(self.plan.durability == Durability::Fsync);
            self.repair();
            self.come_back();
            self.settle();
            self.check_settled();
            self.audit_now();
        }
    }

    /// The disk works again, and a node runs on it.
    fn repair(&mut self) {
        self.plan.is_disk_bad = false;
        self.disk.heal();
        let has_failed = |node: &Node| node.keeper.as_ref().is_some_and(Keeper::has_failed);
        if self.node.as_ref().is_some_and(has_failed) {
            self.end_process(false);
        }
        self.restart();
    }

    fn come_back(&mut self) {
        for client in 0..self.plan.clients {
            self.clients[client].is_dawdling = false;
        }
        // Those that do not know yet that their connection is gone find out; some have to begin anew when they hear of a session.
        for _ in 0..2 {
            self.settle();
            self.connect_all();
        }
        self.settle();
        if self.plan.has_delays {
            self.outwait_delays();
        }
        for client in 0..self.plan.clients {
            if self.clients[client].stage == Stage::Online {
                self.with(client, |client, scene| client.ping(scene));
            }
        }
    }

    /// Until everything is due that was received late, too.
    fn outwait_delays(&mut self) {
        for _ in 0..=DELAY_MAX_S + 1 {
            self.wait(1_000);
            for client in 0..self.clients.len() {
                self.with(client, |client, scene| client.stay_alive(scene));
            }
            self.settle();
        }
    }

    fn connect_all(&mut self) {
        for client in 0..self.plan.clients {
            if self.clients[client].stage == Stage::Away {
                // Whoever does not know what the node keeps of its session begins anew, as it would have to.
                let clean_start = self.clients[client].is_confused;
                self.connect_with(
                    client,
                    Terms {
                        clean_start,
                        ..last_terms()
                    },
                );
            }
        }
    }

    /// Lets everything arrive that is under way, without anything new.
    fn settle(&mut self) {
        let mut quiet = 0;
        for round in 0..ROUNDS_MAX {
            if self.oracle.violation.is_some() || quiet == QUIET_ROUNDS {
                return;
            }
            quiet = if self.settle_round(round) { 0 } else { quiet + 1 };
        }
        self.oracle
            .violated(|| format!("it is never quiet: something goes on after {ROUNDS_MAX} rounds"));
    }

    fn settle_round(&mut self, round: usize) -> bool {
        self.flush_and_tell();
        let workers = self.node.as_ref().map_or(0, |node| node.workers.len());
        for worker in 0..workers {
            self.tick(worker);
        }
        let mut has_moved = false;
        for client in 0..self.clients.len() {
            has_moved |= self.with(client, |client, scene| client.read(usize::MAX, scene));
            has_moved |= self.with(client, |client, scene| {
                let mut has_answered = false;
                while client.answer(scene) {
                    has_answered = true;
                }
                has_answered
            });
        }
        if round % 8 == 7 {
            self.wait(20);
            for client in 0..self.clients.len() {
                self.with(client, |client, scene| client.stay_alive(scene));
            }
        }
        let is_read = self
            .network
            .links
            .iter()
            .enumerate()
            .all(|(index, link)| link.is_closed_by_node || link.to_node.is_empty() || self.is_abandoned(index));
        let is_level = self.node.as_ref().is_none_or(Node::is_level);
        has_moved || !is_read || !is_level || self.node.as_ref().is_some_and(|node| node.is_busy(self.clock))
    }

    /// The client does not read from it, and will not: the node may wait for that as long as it likes.
    fn is_abandoned(&self, link: usize) -> bool {
        let end = &self.network.links[link];
        end.client_end == ClientEnd::Open && self.clients[end.client].link != Some(link)
    }

    fn flush_and_tell(&mut self) {
        self.tap_store.is_full = false;
        if let Some(node) = &self.node {
            node.taps().for_each(|tap| tap.keep_all(&mut self.tap_store));
        }
        if let Some(node) = &mut self.node
            && let Some(keeper) = &mut node.keeper
        {
            keeper.flush();
            keeper.tell();
            if keeper.is_level() {
                self.oracle.kept();
            }
        }
    }

    fn check_settled(&mut self) {
        if self.oracle.violation.is_some() {
            return;
        }
        if let Some(unsettled) = self.clients[..self.plan.clients].iter().find(|c| !c.is_settled()) {
            let text = format!("all is quiet, and still open: {}", unsettled.unsettled());
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
        let may_drop = self.plan.is_limited || self.plan.has_rot || self.plan.config.output_buffer_bytes < 10_000;
        let allowed = if may_drop { explained as usize } else { 0 };
        if missing.len() > allowed {
            let reasons = self.node.as_ref().map(reasons_of_drops).unwrap_or_default();
            let text = format!(
                "{} missing, {explained} dropped, since the start {reasons:?}: {}",
                missing.len(),
                missing[0]
            );
            self.oracle.violated(|| text);
        }
    }

    fn check_sent_again(&mut self) {
        for client in 0..self.plan.clients {
            let Some(serial) = self.clients[client].forgotten(self.oracle.crashes) else {
                continue;
            };
            if self.oracle.may_be_gone(serial) || self.plan.is_limited || self.plan.has_rot {
                continue;
            }
            self.oracle
                .violated(|| format!("client {client} was not sent {serial} again [MQTT-4.4.0-1]"));
        }
    }

    // --- retained messages ---

    /// In the middle of a run: what is kept now.
    pub(super) fn audit(&mut self) {
        self.disk.heal();
        let may_settle = |node: &Node| !node.keeper.as_ref().is_some_and(Keeper::has_failed);
        if self.node.as_ref().is_some_and(may_settle) {
            self.settle();
            self.audit_now();
        }
    }

    fn audit_now(&mut self) {
        if self.oracle.violation.is_some() {
            return;
        }
        let auditor = self.plan.clients;
        let terms = Terms {
            clean_start: true,
            expiry_s: 0,
            ..last_terms()
        };
        self.clients[auditor].retained.clear();
        self.connect_with(auditor, terms);
        self.settle();
        let options = SubscriptionOptions {
            maximum_qos: QoS::ExactlyOnce,
            ..SubscriptionOptions::default()
        };
        self.with(auditor, |client, scene| {
            client.subscribe(RETAINED_FILTER, options, scene);
            client.subscribe(RETAINED_FILTER_TOO, options, scene);
        });
        self.settle();
        if self.oracle.violation.is_none() {
            let got = std::mem::take(&mut self.clients[auditor].retained);
            self.oracle.check_retained(&got);
        }
        self.with(auditor, |client, scene| client.disconnect(None, false, scene));
        self.settle();
    }
}

fn reasons_of_drops(node: &Node) -> Vec<(&'static str, u64)> {
    let drops = node.stats().drops;
    let reasons = DropReason::ALL
        .into_iter()
        .map(|reason| (reason.name(), drops[reason as usize]));
    reasons.filter(|(_, count)| *count > 0).collect()
}

fn last_terms() -> Terms {
    Terms {
        version: ProtocolVersion::V5,
        clean_start: false,
        keep_alive_s: 0,
        expiry_s: 100_000,
        receive_maximum: 20,
        topic_alias_maximum: 0,
        will: None,
    }
}
