//! A build without the feature `jq`: `cargo test -p tidewire-rules --no-default-features --test it no_jq`.

use rules::{Rule, RuleLimits};

#[test]
fn rules_that_call_jq_are_refused() {
    for sql in [
        "SELECT jq('.a', payload) as a FROM \"t\"",
        "SELECT jq(payload.p, '{}') as a FROM \"t\"",
    ] {
        let error = Rule::compile(sql, &RuleLimits::default()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "line 1, column 8: found function jq, expected another function: this server was built without the feature \
             `jq`"
        );
    }
}
