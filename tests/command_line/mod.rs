//! Tests the command line: client, load tool, configuration, import, journal and reload.

mod bench;
mod client;
mod client_and_a_script;
mod config;
mod doctor;
mod import;
mod imported;
mod journal_command;
mod mosquitto;
mod opened_topics;
mod packaging;
mod reference;
mod reload;
mod second_factor;
