//! The flags of emqtt-bench 0.6 with their defaults, and `--duration`.

use clap::builder::BoolishValueParser;
use clap::{Arg, ArgAction, Command, value_parser};

pub fn commands() -> [Command; 3] {
    [
        verb(
            "conn",
            "Connect clients and keep them connected, with emqtt-bench's flags",
        ),
        verb("pub", "Publish from many clients, with emqtt-bench's flags").args(publish_args()),
        verb("sub", "Subscribe many clients, with emqtt-bench's flags")
            .arg(
                text(
                    't',
                    "topic",
                    "FILTER",
                    "Filter; %i, %c, %u as in `pub`; can be repeated",
                )
                .required(true)
                .action(ArgAction::Append),
            )
            .arg(whole('q', "qos", "0", "QoS of the subscriptions"))
            .arg(header_arg()),
    ]
}

fn verb(name: &'static str, about: &'static str) -> Command {
    Command::new(name)
        .about(about)
        .disable_help_flag(true)
        .disable_version_flag(true)
        .arg(Arg::new("help").long("help").action(ArgAction::Help).help("Print help"))
        .args(traffic_args())
        .args(transport_args())
        .args(mqtt_args())
        .args(monitor_args())
        .arg(
            long(
                "duration",
                "SECONDS",
                "End after this time; without it, Ctrl-C or --limit ends the run",
            )
            .value_parser(value_parser!(f64)),
        )
}

fn traffic_args() -> Vec<Arg> {
    vec![
        switch('d', "dist", "Erlang's distribution port; ignored"),
        text('h', "host", "HOST,…", "Brokers").default_value("localhost"),
        whole('p', "port", "1883", "Port"),
        whole('V', "version", "5", "MQTT version: 3, 4 or 5"),
        whole('c', "count", "200", "Clients"),
        whole('R', "connrate", "0", "Connects per second; 0: by --interval"),
        whole('i', "interval", "10", "Milliseconds between connects"),
        long("ifaddr", "ADDRESS,…", "Local addresses to connect from"),
        long("prefix", "TEXT", "Prefix of client ids"),
        boolean("shortids", "Client ids consist of the prefix and the number only"),
        whole('n', "startnumber", "0", "Number of the first client minus one"),
        whole_long("num-retry-connect", "Further attempts to connect after the first"),
        whole_long("reconnect", "Reconnects after a connection was lost; 0: never"),
    ]
}

fn transport_args() -> Vec<Arg> {
    vec![
        boolean("ssl", "TLS").short('S'),
        long("ssl-version", "VERSION", "TLS version, which implies --ssl"),
        long("cacertfile", "FILE", "Certificates of certificate authorities"),
        long("certfile", "FILE", "Client certificate"),
        long("keyfile", "FILE", "Private key of the client certificate"),
        long("ciphers", "LIST", "Cipher suites"),
        long("signature-algs", "LIST", "Signature algorithms"),
        long("keyex-algs", "LIST", "Key exchange groups"),
        long("quic", "true|false|FILE", "QUIC; FILE is not supported").default_value("false"),
        boolean("ws", "WebSocket"),
        long("load-qst", "FILE", "QUIC session tickets; not supported"),
    ]
}

fn mqtt_args() -> Vec<Arg> {
    vec![
        text('u', "username", "TEXT", "User name; %i, %rand_N"),
        text('P', "password", "TEXT", "Password"),
        whole('k', "keepalive", "300", "Keep alive in seconds"),
        boolean("clean", "Clean session").short('C').default_value("true"),
        whole('x', "session-expiry", "0", "Session expiry in seconds"),
        switch('l', "lowmem", "Erlang's memory; ignored"),
        whole_long("force-major-gc-interval", "Erlang's memory; ignored"),
    ]
}

fn monitor_args() -> Vec<Arg> {
    vec![
        text(
            'Q',
            "qoe",
            "true|false|dump",
            "Ignored: the table at the end always has these latencies",
        )
        .default_value("false"),
        long("qoelog", "FILE", "Not supported").default_value(""),
        Arg::new("prometheus")
            .long("prometheus")
            .action(ArgAction::SetTrue)
            .help("Not supported"),
        long("restapi", "PORT", "Not supported"),
        Arg::new("log_to")
            .long("log_to")
            .value_parser(["console", "null"])
            .default_value("console")
            .help("null: only the table at the end"),
    ]
}

fn publish_args() -> Vec<Arg> {
    vec![
        whole(
            'I',
            "interval_of_msg",
            "1000",
            "Milliseconds between messages of a client; 0: as fast as possible",
        ),
        text(
            't',
            "topic",
            "TOPIC",
            "Topic; %i number of the client, %c client id, %u user name, %s number of the message, %rand_N random from 1 to N",
        ),
        header_arg(),
        whole('s', "size", "256", "Bytes of payload"),
        text('m', "message", "TEXT", "Payload, or template://FILE"),
        long("topics-payload", "FILE", "Not supported"),
        whole('q', "qos", "0", "QoS"),
        boolean("retain", "Retain").short('r'),
        whole('L', "limit", "0", "Messages in all; 0: no limit"),
        whole(
            'F',
            "inflight",
            "1",
            "Unacknowledged messages of a client at QoS 1 and 2; 0: as many as MQTT allows",
        ),
        boolean(
            "wait-before-publishing",
            "Publish when all clients are connected; always the case",
        )
        .short('w'),
        whole_long("max-random-wait", "Ignored: first messages are spread evenly"),
        whole_long("min-random-wait", "Ignored: first messages are spread evenly"),
        whole_long(
            "retry-interval",
            "Ignored: MQTT 5 forbids sending again on an open connection",
        ),
        boolean("keep-connected", "Stay connected after --limit until Ctrl-C"),
    ]
}

fn header_arg() -> Arg {
    long(
        "payload-hdrs",
        "cnt64,ts",
        "Accepted: payloads contain counter and time anyway",
    )
    .default_value("")
}

fn long(name: &'static str, value: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).value_name(value).help(help)
}

fn text(short: char, name: &'static str, value: &'static str, help: &'static str) -> Arg {
    long(name, value, help).short(short).allow_hyphen_values(true)
}

fn whole(short: char, name: &'static str, default: &'static str, help: &'static str) -> Arg {
    whole_long(name, help).short(short).default_value(default)
}

fn whole_long(name: &'static str, help: &'static str) -> Arg {
    long(name, "NUMBER", help)
        .value_parser(value_parser!(u32))
        .default_value("0")
}

/// A flag that can be given as `--retain`, `--retain true` and `--retain false`.
fn boolean(name: &'static str, help: &'static str) -> Arg {
    Arg::new(name)
        .long(name)
        .value_name("true|false")
        .num_args(0..=1)
        .default_value("false")
        .default_missing_value("true")
        .value_parser(BoolishValueParser::new())
        .help(help)
}

fn switch(short: char, name: &'static str, help: &'static str) -> Arg {
    Arg::new(name)
        .short(short)
        .long(name)
        .action(ArgAction::SetTrue)
        .help(help)
}
