//! Fuzzes an ACL file in Mosquitto's format and the access of one client. If a subscription is fully granted, the
//! client can receive all of its topics. If it is refused, the client can receive none.

#![no_main]

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;

use auth::{
    Acl, AclOptions, CertificateIdentity, ClientAttributes, Identity, PartialSubscriptionPolicy, Permission,
    SubscriptionGrant, parse_mosquitto_acl,
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (&str, &str, &str, bool, &str)| {
    let (client_id, filter, topic, is_partial, text) = input;
    let rules = match parse_mosquitto_acl(Path::new("acl"), text) {
        Ok(rules) => rules,
        Err(errors) => return assert!(!errors.to_string().is_empty()),
    };
    let options = AclOptions {
        no_match: Permission::Deny,
        partial_subscription: if is_partial { PartialSubscriptionPolicy::Filter } else { PartialSubscriptionPolicy::Refuse },
    };
    let acl = Acl::compile(&rules, options).expect("the parser has checked the rules");
    if mqtt::validate_filter(filter).is_err() || mqtt::validate_topic_name(topic).is_err() {
        return;
    }
    let session = acl.session(&Identity {
        client_id,
        user_name: Some("u"),
        address: IpAddr::V4(Ipv4Addr::LOCALHOST),
        is_superuser: false,
        attributes: ClientAttributes::NONE,
        certificate: CertificateIdentity::default(),
    });
    session.publish(topic, mqtt::QoS::AtLeastOnce, false);
    if !mqtt::filter_matches(filter, topic) {
        return;
    }
    match session.subscribe(filter) {
        SubscriptionGrant::Allowed { filter_deliveries: false } => assert!(session.can_receive(topic), "granted, but not delivered"),
        SubscriptionGrant::Denied if is_partial => assert!(!session.can_receive(topic), "refused, but a topic of it is allowed"),
        _ => {}
    }
});
