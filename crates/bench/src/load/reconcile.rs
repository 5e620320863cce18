//! The comparison of the messages that were sent and received, flow by flow.
//!
//! The expected messages depend on the presence of a subscriber:
//! - always connected: all accepted messages;
//! - absent while others publish: those that its session stores (QoS 1 and 2);
//! - connected afterwards: the retained messages;
//! - connecting and disconnecting all the time: none.
//!
//! A lost connection does not change this: messages that a broker drops then are reported as lost.

use std::collections::HashMap;
use std::ops::Range;

use mqtt::QoS;

use super::client::{LoadClient, LoadClientState};
use super::context::LoadContext;
use super::flow::{Finding, FindingKind, ReceivedSet, subtract};
use super::plan::{GroupPlan, LoadPlan};
use super::shares::describe_missing;
use super::truth::SenderNumber;
use crate::driver::{GroupIndex, ReconciledCounts, SentCounts, ShareReceipt};
use crate::scenario::GroupPresence;

/// Most examples of one worker.
pub const EXAMPLES_MAX: usize = 10;

/// The messages that all publishers have sent, by sender number.
pub struct SentTable {
    counts: Vec<u32>,
    unaccepted: HashMap<SenderNumber, Vec<Range<u32>>>,
}

/// The result of one worker.
#[derive(Default)]
pub struct Findings {
    pub truth: ReconciledCounts,
    pub examples: Vec<String>,
    pub errors: HashMap<String, u64>,
    /// By shared subscription and position of the sender in its sources.
    pub shares: Vec<Vec<ReceivedSet>>,
    /// The same for the orchestrator, if other machines have members of the shared subscription.
    pub receipts: Vec<ShareReceipt>,
}

impl SentTable {
    pub fn new(plan: &LoadPlan, sent: &[SentCounts]) -> SentTable {
        let mut table = SentTable {
            counts: vec![0; plan.topics.len()],
            unaccepted: HashMap::new(),
        };
        for part in sent {
            let publishing = plan
                .groups
                .get(part.group.position())
                .and_then(|group| group.publishing.as_ref());
            let Some(publishing) = publishing else { continue };
            for (offset, &count) in part.counts.iter().enumerate() {
                let sender = publishing.first_sender.index() + part.first.0 as usize + offset;
                if let Some(known) = table.counts.get_mut(sender) {
                    *known = u32::try_from(count).unwrap_or(u32::MAX);
                }
            }
            for range in &part.unaccepted {
                let sequence = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
                let ranges = table.unaccepted.entry(publishing.sender(range.client)).or_default();
                ranges.push(sequence(range.from)..sequence(range.to));
            }
        }
        for ranges in table.unaccepted.values_mut() {
            ranges.sort_unstable_by_key(|range| range.start);
        }
        table
    }

    fn unaccepted(&self, sender: SenderNumber) -> &[Range<u32>] {
        self.unaccepted.get(&sender).map_or(&[], Vec::as_slice)
    }

    /// Returns how many messages of a range were accepted.
    fn accepted(&self, sender: SenderNumber, range: &Range<u32>) -> u64 {
        let left = subtract(vec![range.clone()], self.unaccepted(sender));
        left.iter().map(|range| range.len() as u64).sum()
    }
}

/// Returns the messages of a sender that a subscriber must receive.
fn expected(plan: &LoadPlan, client: &LoadClient, sender: SenderNumber, table: &SentTable) -> Range<u32> {
    let count = table.counts[sender.index()];
    let group = &plan.groups[client.group.position()];
    let Some((publishers, _)) = plan.publisher(sender) else {
        return 0..0;
    };
    let is_refused = client
        .subscriber
        .as_ref()
        .is_none_or(|subscriber| subscriber.is_refused);
    if is_refused || !client.has_subscribed || group.group.cycle.is_some() {
        return 0..0;
    }
    match group.group.presence {
        GroupPresence::Always => 0..count,
        GroupPresence::AwayWhilePublishing if is_queued_for(group, publishers) => 0..count,
        GroupPresence::AwayWhilePublishing => 0..0,
        GroupPresence::AfterPublishing => retained(plan, sender, publishers, count),
    }
}

fn is_queued_for(group: &GroupPlan, publishers: &GroupPlan) -> bool {
    let qos = publishers
        .publishing
        .as_ref()
        .map_or(QoS::AtMostOnce, |publishing| publishing.qos);
    group.keeps_session() && qos != QoS::AtMostOnce && group.max_subscribe_qos() > 0
}

/// Returns the retained messages: the last one of a topic with one publisher; all of them if each has its own topic.
fn retained(plan: &LoadPlan, sender: SenderNumber, publishers: &GroupPlan, count: u32) -> Range<u32> {
    if !publishers.group.publish.as_ref().is_some_and(|publish| publish.retain) {
        return 0..0;
    }
    let topic = &plan.topics[sender.index()];
    if topic.has_sequence() {
        return 0..count;
    }
    let mut scratch = String::new();
    let is_only_one = topic.of(0, &mut scratch, |topic| plan.tree.publishers_of(topic)) == 1;
    if is_only_one {
        count.saturating_sub(1)..count
    } else {
        0..0
    }
}

/// Whether no message of this worker and of the shared subscriptions is missing.
pub fn is_complete(clients: &[LoadClient], cx: &LoadContext, table: &SentTable) -> bool {
    let plan = &cx.plan;
    let is_served = |client: &LoadClient| {
        let Some(subscriber) = &client.subscriber else {
            return true;
        };
        subscriber.sources.iter().zip(&subscriber.flows).all(|(sender, flow)| {
            let (missing, _) = cx.gaps.missing(flow, expected(plan, client, sender, table));
            missing.is_empty() || subtract(missing, table.unaccepted(sender)).is_empty()
        })
    };
    let shares = plan.shares.iter().zip(&plan.shared.share_received);
    let mut is_shared = shares.map(|(share, received)| {
        let expected: u64 = share
            .sources
            .iter()
            .map(|sender| table.accepted(sender, &(0..table.counts[sender.index()])))
            .sum();
        received.load(std::sync::atomic::Ordering::Relaxed) >= expected
    });
    (!compares_shares(plan) || is_shared.all(|is_all| is_all)) && clients.iter().all(is_served)
}

/// Whether this driver has all members of the shared subscriptions. Otherwise the orchestrator compares them.
fn compares_shares(plan: &LoadPlan) -> bool {
    plan.groups.iter().all(|group| {
        group.local == (0..group.group.clients)
            || !group
                .group
                .subscribe
                .iter()
                .any(|subscribe| subscribe.filter.starts_with("$share/"))
    })
}

pub fn compare(clients: &[LoadClient], cx: &mut LoadContext, table: &SentTable) -> Findings {
    let plan = cx.plan.clone();
    let mut findings = Findings {
        truth: ReconciledCounts {
            duplicated: cx.gaps.duplicated,
            reordered: cx.gaps.reordered,
            corrupt: cx.gaps.corrupt,
            unverified: cx.gaps.unverified,
            ..ReconciledCounts::default()
        },
        errors: std::mem::take(&mut cx.meter.errors),
        shares: std::mem::take(&mut cx.share_log),
        ..Findings::default()
    };
    for client in clients {
        compare_client(&mut findings, client, cx, table);
    }
    let written = cx.gaps.findings.iter().map(|finding| describe(&plan, clients, finding));
    findings.examples.extend(written);
    findings
}

fn compare_client(findings: &mut Findings, client: &LoadClient, cx: &LoadContext, table: &SentTable) {
    let Some(subscriber) = &client.subscriber else { return };
    let plan = &cx.plan;
    let (truth, examples) = (&mut findings.truth, &mut findings.examples);
    let mut miss = |publisher: &str, missing: &[Range<u32>], lost: u64| {
        if lost > 0 && examples.len() < EXAMPLES_MAX {
            let words = describe_missing(publisher, missing, lost);
            let example = format!("{} missed {words}{}", client_name(plan, client), describe_state(client));
            examples.push(example);
        }
    };
    for (sender, flow) in subscriber.sources.iter().zip(&subscriber.flows) {
        let (group, _) = plan.publisher(sender).expect("every sender has a group");
        let is_verifiable = group
            .publishing
            .as_ref()
            .is_some_and(|publishing| publishing.payload.is_verifiable());
        let expected = expected(plan, client, sender, table);
        if expected.is_empty() || !is_verifiable {
            continue;
        }
        let count = table.accepted(sender, &expected);
        let (missing, given_up) = cx.gaps.missing(flow, expected);
        let missing = subtract(missing, table.unaccepted(sender));
        let lost = (missing.iter().map(|range| range.len() as u64).sum::<u64>() + given_up).min(count);
        add_flow(truth, count, lost);
        if lost > 0 {
            miss(&publisher_name(plan, sender), &missing, lost);
        }
    }
    for result in subscriber.other_runs.iter().flat_map(|others| others.results(&cx.gaps)) {
        add_flow(truth, result.expected, result.lost);
        miss(&result.publisher, &result.missing, result.lost);
    }
}

fn add_flow(truth: &mut ReconciledCounts, expected: u64, lost: u64) {
    truth.flows += 1;
    truth.expected += expected;
    truth.lost += lost;
    truth.received += expected - lost;
}

fn describe_state(client: &LoadClient) -> &'static str {
    if client.state == LoadClientState::GivenUp {
        " (its connection was lost)"
    } else {
        ""
    }
}

fn client_name(plan: &LoadPlan, client: &LoadClient) -> String {
    plan.groups[client.group.position()].client_id(client.index, plan.job.run)
}

fn publisher_name(plan: &LoadPlan, sender: SenderNumber) -> String {
    plan.publisher(sender)
        .map_or_else(String::new, |(group, index)| group.label(index))
}

fn describe(plan: &LoadPlan, clients: &[LoadClient], finding: &Finding) -> String {
    let who = clients
        .get(finding.slot.index())
        .map_or_else(String::new, |client| client_name(plan, client));
    let (of, number) = (publisher_name(plan, finding.sender), finding.sequence);
    match finding.kind {
        FindingKind::Duplicate => format!("{who} got message {number} of {of} more than once"),
        FindingKind::Reordered => format!("{who} got message {number} of {of} after a later one"),
        FindingKind::CorruptPayload => {
            format!("{who} got message {number} of {of} whose payload differs from the published one")
        }
        FindingKind::WrongTopic => format!("{who} got message {number} of {of} on a topic to which it was not sent"),
        FindingKind::NotSubscribed => format!("{who} got message {number} of {of}, to which it has not subscribed"),
        FindingKind::DamagedHeader => {
            format!("{who} got a message on a topic of {of} whose verification header is damaged")
        }
    }
}

/// Combines the results of all workers, and compares the shared subscriptions.
pub fn conclude(plan: &LoadPlan, table: &SentTable, parts: Vec<Findings>) -> Findings {
    let mut whole = Findings::default();
    for part in parts {
        whole.truth += &part.truth;
        whole.examples.extend(part.examples);
        for (reason, count) in part.errors {
            *whole.errors.entry(reason).or_default() += count;
        }
        if whole.shares.is_empty() {
            whole.shares = part.shares;
            continue;
        }
        for (known, other) in whole.shares.iter_mut().flatten().zip(part.shares.iter().flatten()) {
            whole.truth.duplicated += known.merge(other);
        }
    }
    let is_whole = compares_shares(plan);
    for (share, received) in plan.shares.iter().zip(std::mem::take(&mut whole.shares)) {
        for (sender, received) in share.sources.iter().zip(received) {
            match is_whole {
                true => compare_share(&mut whole, plan, &share.key, sender, &received, table),
                false => whole.receipts.extend(receipt(plan, &share.key, sender, &received)),
            }
        }
    }
    whole.examples.truncate(EXAMPLES_MAX);
    whole
}

fn receipt(plan: &LoadPlan, key: &str, sender: SenderNumber, received: &ReceivedSet) -> Option<ShareReceipt> {
    let (group, client) = plan.publisher(sender)?;
    let group = plan.groups.iter().position(|other| std::ptr::eq(other, group))?;
    Some(ShareReceipt {
        filter: key.to_string(),
        group: GroupIndex::new(group),
        client,
        received: received
            .present()
            .into_iter()
            .map(|range| (range.start, range.end))
            .collect(),
    })
}

fn compare_share(
    whole: &mut Findings,
    plan: &LoadPlan,
    key: &str,
    sender: SenderNumber,
    received: &ReceivedSet,
    table: &SentTable,
) {
    let expected = 0..table.counts[sender.index()];
    let count = table.accepted(sender, &expected);
    let missing = subtract(received.missing(expected), table.unaccepted(sender));
    let lost: u64 = missing.iter().map(|range| range.len() as u64).sum();
    add_flow(&mut whole.truth, count, lost);
    if lost > 0 {
        whole.examples.push(format!(
            "no subscriber of {key} got {}",
            describe_missing(&publisher_name(plan, sender), &missing, lost)
        ));
    }
}
