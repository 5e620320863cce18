//! Before a run: how far each message goes, and who of the drivers does what.
//!
//! Clients of a group are dealt out in contiguous ranges, so that a driver has the publisher and the subscriber of most pairs.

use std::ops::Range;

use mqtt::SharedFilter;

use crate::driver::Job;
use crate::load::{Names, SENDERS_MAX, Topic, TopicTree, expand};
use crate::scenario::{Group, Presence, Scenario};
use crate::target::Target;

/// Each compared flow costs its driver eight bytes and some time at the end.
const FLOWS_MAX: u64 = 1_000_000_000;

/// How far messages go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reach {
    pub clients: u64,
    pub publishers: u64,
    pub subscribers: u64,
    /// Pairs of a publisher and a subscriber, or a shared subscription, that hears it: deliveries when every publisher sends once.
    pub flows: u64,
}

pub fn reach(scenario: &Scenario) -> Result<Reach, String> {
    let clients = |groups: &mut dyn Iterator<Item = &Group>| groups.map(|group| u64::from(group.clients)).sum();
    let mut reach = Reach {
        clients: clients(&mut scenario.group.iter()),
        publishers: clients(&mut scenario.group.iter().filter(|group| publishes(group))),
        subscribers: clients(&mut scenario.group.iter().filter(|group| !group.subscribe.is_empty())),
        flows: 0,
    };
    if reach.publishers > SENDERS_MAX {
        return Err(format!(
            "{} publishers are too many; there can be {SENDERS_MAX}",
            reach.publishers
        ));
    }
    let tree = tree(scenario);
    let mut shares = std::collections::HashSet::new();
    for group in scenario.group.iter().filter(|group| !group.subscribe.is_empty()) {
        reach.flows += flows(group, &tree, &mut shares);
    }
    match reach.flows > FLOWS_MAX {
        true => Err(format!(
            "every message reaches so many that {} flows would have to be followed; at most {FLOWS_MAX} can be",
            reach.flows
        )),
        false => Ok(reach),
    }
}

fn publishes(group: &Group) -> bool {
    group.publish.is_some() && group.cycle.is_none() && group.presence == Presence::Always
}

fn tree(scenario: &Scenario) -> TopicTree {
    let mut tree = TopicTree::new();
    let mut sender = 0;
    for group in scenario.group.iter().filter(|group| publishes(group)) {
        let pattern = group.publish.as_ref().map_or("", |publish| &publish.topic);
        for index in 0..group.clients {
            tree.add(&with_names(group, index, |names| Topic::new(pattern, names)), sender);
            sender += 1;
        }
    }
    tree
}

fn flows(group: &Group, tree: &TopicTree, shares: &mut std::collections::HashSet<String>) -> u64 {
    // Without anything of the client in them, all clients' filters are alike.
    let is_own = |filter: &str| ["%i", "%c", "%u"].iter().any(|name| filter.contains(name));
    let differ = group.subscribe.iter().any(|subscribe| is_own(&subscribe.filter));
    let distinct = if differ { group.clients } else { 1 };
    let of_one = |index| -> u64 {
        let filters: Vec<String> = with_names(group, index, |names| {
            group
                .subscribe
                .iter()
                .map(|subscribe| expand(&subscribe.filter, names))
                .collect()
        });
        let (shared, plain): (Vec<_>, Vec<_>) = filters.iter().partition(|filter| filter.starts_with("$share/"));
        let own = tree.heard_by(plain.iter().map(|filter| filter.as_str())).len() as u64;
        let each = if differ { 1 } else { u64::from(group.clients) };
        let mut sum = own * each;
        for filter in shared {
            if shares.insert(filter.clone()) {
                let inner = SharedFilter::parse(filter).ok().flatten().map(|shared| shared.filter);
                sum += tree.heard_by(inner.into_iter()).len() as u64;
            }
        }
        sum
    };
    (0..distinct).map(of_one).sum()
}

fn with_names<R>(group: &Group, index: u32, with: impl FnOnce(&Names<'_>) -> R) -> R {
    let mut names = Names {
        number: u64::from(group.start_number) + u64::from(index),
        group: &group.name,
        ..Names::default()
    };
    let user_pattern = group.user_name.as_deref().unwrap_or_default();
    let first_user = expand(user_pattern, &names);
    names.user_name = &first_user;
    let client_id = expand(&group.client_id, &names);
    names.client_id = &client_id;
    let user_name = expand(user_pattern, &names);
    names.user_name = &user_name;
    with(&names)
}

/// A driver to be given work.
#[derive(Clone, Copy, Debug)]
pub struct Hand {
    /// Worker threads; 0 lets an agent take its cores.
    pub threads: u16,
    pub clock_offset_ns: i64,
}

/// One job for each driver.
pub fn split(scenario: &Scenario, target: &Target, run: u16, hands: &[Hand]) -> Vec<Job> {
    let count = hands.len().max(1);
    let all: u64 = scenario.group.iter().map(|group| u64::from(group.clients)).sum();
    let jobs = hands.iter().enumerate().map(|(index, hand)| {
        let clients: Vec<Range<u32>> = scenario
            .group
            .iter()
            .map(|group| part(group.clients, index, count))
            .collect();
        let own: u64 = clients.iter().map(|range| range.len() as u64).sum();
        let mut scenario = scenario.clone();
        scenario.connecting_max = (scenario.connecting_max / count as u32).max(1);
        Job {
            connect_rate: scenario.connect_rate * own as f64 / all.max(1) as f64,
            scenario,
            target: target.clone(),
            run,
            clients,
            threads: hand.threads,
            clock_offset_ns: hand.clock_offset_ns,
            epoch_ns: 0,
        }
    });
    jobs.collect()
}

fn part(clients: u32, index: usize, count: usize) -> Range<u32> {
    let bound = |index: usize| (u64::from(clients) * index as u64 / count as u64) as u32;
    bound(index)..bound(index + 1)
}

/// How many clients a job has.
pub fn clients_of(job: &Job) -> u64 {
    job.clients.iter().map(|range| range.len() as u64).sum()
}

/// Says what is missing when this machine has fewer local ports than a job has connections to one address.
pub fn check_ports(job: &Job) -> Result<(), String> {
    let (low, high) = local_ports();
    let ports = u64::from(high.saturating_sub(low)) + 1;
    let routes = job.target.hosts.len().max(1) * job.target.source_addresses.len().max(1);
    let clients = clients_of(job);
    if clients <= ports * routes as u64 {
        return Ok(());
    }
    let wanted = clients.div_ceil(ports * job.target.hosts.len().max(1) as u64);
    Err(format!(
        "{clients} connections need {wanted} source addresses, of which each has {ports} ports ({low} to {high}): give them with --ifaddr \
         (for a broker on this machine 127.0.0.2,127.0.0.3,… need no set-up), or widen net.ipv4.ip_local_port_range"
    ))
}

/// Linux's own default where it cannot be read.
fn local_ports() -> (u32, u32) {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let mut bounds = text.split_whitespace().map_while(|word| word.parse().ok());
    match (bounds.next(), bounds.next()) {
        (Some(low), Some(high)) => (low, high),
        _ => (32768, 60999),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::presets;

    fn preset(name: &str) -> Scenario {
        presets::all().find(|scenario| scenario.name == name).unwrap()
    }

    #[test]
    fn knows_how_far_the_messages_of_presets_go() {
        for (name, publishers, subscribers, flows) in [
            ("fanout", 10, 1_000, 10_000),
            ("fanin", 1_000, 1, 1_000),
            ("p2p", 1_000, 1_000, 1_000),
            ("shared", 100, 20, 100),
            ("tbmq-fanout", 100, 3_000, 300_000),
            ("tbmq-p2p", 100_000, 100_000, 100_000),
            ("nanomq-broadcast", 20, 500, 10_000),
            ("emqx-kafka", 100_000, 0, 0),
        ] {
            let reach = reach(&preset(name)).unwrap();
            assert_eq!(
                (reach.publishers, reach.subscribers, reach.flows),
                (publishers, subscribers, flows),
                "{name}"
            );
        }
    }

    #[test]
    fn every_preset_plans_and_splits_without_gap_or_overlap() {
        for scenario in presets::all() {
            let reach = reach(&scenario).unwrap();
            for count in [1, 3, 7] {
                let hands = vec![
                    Hand {
                        threads: 1,
                        clock_offset_ns: 0
                    };
                    count
                ];
                let jobs = split(&scenario, &Target::default(), 1, &hands);
                assert_eq!(jobs.iter().map(clients_of).sum::<u64>(), reach.clients);
                let rate: f64 = jobs.iter().map(|job| job.connect_rate).sum();
                assert!((rate - scenario.connect_rate).abs() < 1e-6);
                for (number, group) in scenario.group.iter().enumerate() {
                    let mut ranges: Vec<Range<u32>> = jobs.iter().map(|job| job.clients[number].clone()).collect();
                    ranges.retain(|range| !range.is_empty());
                    assert!(ranges.windows(2).all(|pair| pair[0].end == pair[1].start));
                    assert_eq!((ranges[0].start, ranges[ranges.len() - 1].end), (0, group.clients));
                }
            }
        }
    }

    #[test]
    fn half_a_million_pairs_are_planned_without_comparing_all_with_all() {
        let mut scenario = preset("tbmq-p2p");
        for group in &mut scenario.group {
            group.clients = 500_000;
        }
        assert_eq!(reach(&scenario).unwrap().flows, 500_000);
    }

    #[test]
    fn too_many_flows_are_refused() {
        let mut scenario = preset("fanout");
        for group in &mut scenario.group {
            group.clients = 100_000;
        }
        assert!(reach(&scenario).unwrap_err().contains("10000000000 flows"));
    }

    #[test]
    fn too_few_ports_are_noticed_before_the_run() {
        let scenario = preset("tbmq-p2p");
        let hands = [Hand {
            threads: 1,
            clock_offset_ns: 0,
        }];
        let target = Target {
            hosts: vec!["127.0.0.1".into()],
            ..Target::default()
        };
        let said = check_ports(&split(&scenario, &target, 1, &hands)[0]).unwrap_err();
        assert!(said.contains("source addresses"), "{said}");
        let source_addresses = (2..12)
            .map(|last| std::net::Ipv4Addr::new(127, 0, 0, last).into())
            .collect();
        let target = Target {
            source_addresses,
            ..target
        };
        check_ports(&split(&scenario, &target, 1, &hands)[0]).unwrap();
    }
}
