//! Tests that the generated pages of `docs/reference` match the definitions in the code.

use std::fs;
use std::path::Path;

use tidewire::reference;

macro_rules! page_tests {
    ($($test:ident $page:literal;)*) => {
        $(#[test]
        fn $test() {
            check($page);
        })*

        #[test]
        fn every_generated_page_has_a_test() {
            assert_eq!(reference::names().collect::<Vec<_>>(), [$($page),*]);
        }
    };
}

page_tests! {
    configuration_page_is_up_to_date "configuration";
    command_line_page_is_up_to_date "command-line";
    connectors_page_is_up_to_date "connectors";
    metrics_page_is_up_to_date "metrics";
    sys_topics_page_is_up_to_date "sys-topics";
    limits_page_is_up_to_date "limits";
    api_page_is_up_to_date "api";
    thingsboard_endpoints_page_is_up_to_date "thingsboard-endpoints";
    rule_functions_page_is_up_to_date "rule-functions";
}

fn check(name: &str) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference");
    let stored = fs::read_to_string(root.join(format!("{name}.md"))).unwrap_or_default();
    assert!(
        reference::page(name).is_some_and(|page| stored == page),
        "docs/reference/{name}.md is not what the definitions say: run `make generate`"
    );
}
