//! Command lines of emqtt-bench and the scenarios that they are converted to.

use super::args::commands;
use super::convert::{ConvertedCommand, convert};
use crate::scenario::document::to_toml;
use crate::target::TargetTransport;

fn converted(line: &str) -> Result<ConvertedCommand, String> {
    let mut words = line.split_whitespace();
    let verb = words.next().unwrap();
    let command = commands()
        .into_iter()
        .find(|command| command.get_name() == verb)
        .unwrap();
    let matches = command
        .try_get_matches_from(line.split_whitespace())
        .map_err(|error| error.to_string())?;
    convert(verb, &matches).map_err(|refusal| refusal.message)
}

fn toml(line: &str) -> String {
    to_toml(&converted(line).unwrap().scenario)
}

#[test]
fn convert_of_documented_command_makes_scenario() {
    let table = [
        (
            "pub --prefix x -c 20 -I 10 -t bench/%i -s 256 -q 1 -V 4",
            r#"name = "pub"
about = "emqtt-bench pub"
duration_s = 10000000.0
warm_up_s = 0.0
connect_rate = 100.0

[[group]]
name = "pub"
clients = 20
start_number = 1
client_id = "x_bench_pub_%i"

[group.publish]
topic = "bench/%i"
qos = 1
rate = 100.0
window = 1

[group.publish.payload]
bytes = 256
"#,
        ),
        (
            "sub --shortids -c 500 -i 0 -t t/%c/100% -t # -q 2 -n 10 -C false -x 60 --duration 5",
            r##"name = "sub"
about = "emqtt-bench sub"
duration_s = 5.0
warm_up_s = 0.0

[[group]]
name = "sub"
clients = 500
start_number = 11
client_id = "%i"
version = 5
clean_start = false
session_expiry_s = 60

[[group.subscribe]]
filter = "t/%c/100%%"
qos = 2

[[group.subscribe]]
filter = "#"
qos = 2
"##,
        ),
        (
            "conn --shortids true --prefix p% -R 2000 -k 30 -V 3 -u %i -P secret --reconnect 3",
            r#"name = "conn"
about = "emqtt-bench conn"
duration_s = 10000000.0
warm_up_s = 0.0
connect_rate = 2000.0

[[group]]
name = "conn"
clients = 200
start_number = 1
client_id = "p%%%i"
user_name = "%i"
password = "secret"
version = 3
keep_alive_s = 30
reconnects = true
"#,
        ),
    ];
    for (line, expected) in table {
        assert_eq!(toml(line), expected, "{line}");
    }
}

#[test]
fn limit_is_divided_among_clients() {
    for (count, limit, parts) in [
        (10, 50_000, vec![(10, 5_000)]),
        (3, 10, vec![(1, 4), (2, 3)]),
        (5, 2, vec![(2, 1), (3, 0)]),
    ] {
        let scenario = converted(&format!("pub -t a/%i -c {count} -L {limit}"))
            .unwrap()
            .scenario;
        let found: Vec<(u32, u64)> = scenario
            .group
            .iter()
            .map(|group| {
                (
                    group.clients,
                    group.publish.as_ref().map_or(0, |publish| publish.messages),
                )
            })
            .collect();
        assert_eq!(found, parts);
        let numbers: Vec<u32> = scenario.group.iter().map(|group| group.start_number).collect();
        assert_eq!(numbers[0], 1);
        assert!(numbers.len() == 1 || numbers[1] == 1 + scenario.group[0].clients);
    }
}

#[test]
fn target_of_flags_matches_emqtt_bench() {
    for (flags, transport) in [
        ("", TargetTransport::Tcp),
        ("-S", TargetTransport::Tls),
        ("--ssl", TargetTransport::Tls),
        ("--ssl false", TargetTransport::Tcp),
        ("--ssl-version tlsv1.3", TargetTransport::Tls),
        ("--ws", TargetTransport::Ws),
        ("--ws true -S true", TargetTransport::Wss),
        ("--quic true", TargetTransport::Quic),
    ] {
        assert_eq!(
            converted(&format!("conn {flags}")).unwrap().target.transport,
            transport,
            "{flags}"
        );
    }
    let target = converted("conn -h a,b -p 2000 --ifaddr 127.0.0.2,127.0.0.3")
        .unwrap()
        .target;
    assert_eq!(
        (target.hosts.len(), target.port, target.source_addresses.len()),
        (2, 2000, 2)
    );
}

#[test]
fn convert_notes_ignored_and_rejects_unsupported_flags() {
    let accepted = converted(
        "pub -t a -d -l --force-major-gc-interval 5 --qoe true --prometheus --restapi 8080 -w --retry-interval 3 \
         --max-random-wait 9 --payload-hdrs cnt64,ts --keep-connected --log_to null -r -F 0 -q 1",
    )
    .unwrap();
    assert_eq!(accepted.notes.len(), 9, "{:?}", accepted.notes);
    let publish = accepted.scenario.group[0].publish.as_ref().unwrap();
    assert!(publish.retain && publish.window == 65_535);
    for (line, reason) in [
        ("pub -t a --quic file.conf", "use --quic true"),
        ("pub -t a/%rand_0", "from 1"),
        ("pub -t a -u %rand_x", "%rand_N"),
        ("sub -t a/%rand_10", "+ in its place"),
        ("pub", "-t TOPIC"),
        ("pub -t a/#", "wildcard"),
        ("pub -t a -q 3", "expected 0, 1 or 2"),
        ("pub -t a --topics-payload x.json", "one topic"),
        ("pub -t a --payload-hdrs cnt32", "cnt64 or ts"),
        ("conn --ssl-version tlsv1.1", "TLS 1.2"),
        ("conn -p 0", "expected a port"),
        ("conn -V 6", "expected 3, 4 or 5"),
        ("conn --ifaddr eth0", "no IP address"),
        ("sub -c 5", "--topic"),
    ] {
        let message = converted(line).unwrap_err();
        assert!(message.contains(reason), "{line}: {message}");
    }
}

#[test]
fn convert_replaces_random_variables() {
    let scenario = converted("pub -t a/%rand_10/%i/x%rand_2y/%s/50% -u %rand_7 -c 5")
        .unwrap()
        .scenario;
    let group = &scenario.group[0];
    let topic = &group.publish.as_ref().unwrap().topic;
    assert_eq!(topic, "a/%{rand:10}/%i/x%{rand:2}y/%s/50%%");
    assert_eq!(group.user_name.as_deref(), Some("%{rand:7}"));
}

#[test]
fn default_client_id_contains_host_verb_and_run() {
    let scenario = converted("sub -t a").unwrap().scenario;
    assert!(scenario.group[0].client_id.ends_with("_bench_sub_%r_%i"));
}
