//! Fuzzes access rules in EMQX's JSON, as claims of a token and answers of an HTTP service contain them. Accepted rules
//! mean the same after they were written again, and lists of topics deny all others.

#![no_main]

use std::net::{IpAddr, Ipv4Addr};

use auth::{
    Acl, AclOptions, CertificateIdentity, ClientAttributes, ClientRules, Identity, Permission, SessionAcl,
    SubscriptionGrant, emqx_acl,
};
use libfuzzer_sys::fuzz_target;
use mqtt::QoS;
use serde_json::Value;

/// No rule can name it by chance: the fuzzer does not know this text.
const UNKNOWN_TOPIC: &str = "b0c1a2f4-5d6e-4f70-8192-a3b4c5d6e7f8";

fuzz_target!(|bytes: &[u8]| {
    let Some((topic, text)) = std::str::from_utf8(bytes).ok().and_then(|text| text.split_once('\n')) else {
        return;
    };
    let Ok(json) = serde_json::from_str::<Value>(text) else {
        return;
    };
    let Some(session) = session(&json) else { return };
    let again = serde_json::from_str(&json.to_string()).expect("written JSON can be parsed");
    let again = self::session(&again).expect("the rules were valid before");
    if mqtt::validate_topic_name(topic).is_ok() {
        for qos in [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce] {
            for retain in [false, true] {
                assert_eq!(session.publish(topic, qos, retain), again.publish(topic, qos, retain));
            }
        }
        assert_eq!(session.can_receive(topic), again.can_receive(topic));
    }
    let can_match_all = text.contains(['#', '+', '$', '\\']);
    if json.is_object() && !can_match_all {
        assert!(!session.publish(UNKNOWN_TOPIC, QoS::AtMostOnce, false));
        assert_eq!(session.subscribe(UNKNOWN_TOPIC), SubscriptionGrant::Denied);
    }
});

/// Returns the access of a client with these rules, if they are valid. The server allows everything else.
fn session(json: &Value) -> Option<SessionAcl> {
    let rules = match emqx_acl(json) {
        Ok(rules) => rules,
        Err(error) => {
            assert!(!error.is_empty());
            return None;
        }
    };
    let own = ClientRules::compile(&rules).ok()?;
    let options = AclOptions {
        no_match: Permission::Allow,
        ..AclOptions::default()
    };
    let who = Identity {
        client_id: "c",
        user_name: Some("u"),
        address: IpAddr::V4(Ipv4Addr::LOCALHOST),
        is_superuser: false,
        attributes: ClientAttributes::NONE,
        certificate: CertificateIdentity::default(),
    };
    let acl = Acl::compile(&[], options).expect("there are no rules");
    Some(acl.session_with(&own, &who))
}
