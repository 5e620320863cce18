//! An ACL file as Mosquitto has it, and what it lets one client do: a subscription that is granted whole must have no
//! topic that may not be received, one that is refused must have none that may.

#![no_main]

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;

use auth::{Acl, AclOptions, Grant, Identity, PartialSubscription, Permission, parse_mosquitto_acl};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (&str, &str, &str, bool, &str)| {
    let (client_id, filter, topic, is_partial, text) = input;
    let rules = match parse_mosquitto_acl(Path::new("acl"), text) {
        Ok(rules) => rules,
        Err(errors) => return assert!(!errors.to_string().is_empty()),
    };
    let options = AclOptions {
        no_match: Permission::Deny,
        partial_subscription: if is_partial { PartialSubscription::Filter } else { PartialSubscription::Refuse },
    };
    let acl = Acl::compile(&rules, options).expect("what the file says is checked when it is read");
    if mqtt::validate_filter(filter).is_err() || mqtt::validate_topic_name(topic).is_err() {
        return;
    }
    let session = acl.session(&Identity {
        client_id,
        user_name: Some("u"),
        address: IpAddr::V4(Ipv4Addr::LOCALHOST),
        is_superuser: false,
    });
    session.publish(topic, mqtt::QoS::AtLeastOnce, false);
    if !mqtt::filter_matches(filter, topic) {
        return;
    }
    match session.subscribe(filter) {
        Grant::Allowed { filter_deliveries: false } => assert!(session.may_receive(topic), "granted, but not delivered"),
        Grant::Denied if is_partial => assert!(!session.may_receive(topic), "refused, but some of it is allowed"),
        _ => {}
    }
});
