"""Every kind of attack and the tests that try it, in this folder and in the tests of the packages.

A test is given by its file under `tests/` and its name. `test_attacks.py` checks that each of them exists, and that no
test of this folder is missing from the table.
"""

from __future__ import annotations

from typing import Final

ATTACKS: Final[dict[str, dict[str, tuple[str, ...]]]] = {
    "signatures: wrong, altered, of another scope": {
        "proof/intruders/test_signatures.py": (
            "test_whatever_is_altered_after_signing_the_request_is_not_carried_out",
            "test_a_signature_with_the_wrong_secret_time_or_scope_counts_for_nothing",
            "test_the_right_request_is_carried_out_so_that_the_refusals_above_mean_something",
            "test_another_way_to_write_a_signed_path_leads_nowhere_else",
        ),
        "broker/test_auth.py": (
            "test_a_request_changed_after_signing_is_refused",
            "test_a_presigned_url_changed_after_signing_is_refused",
            "test_a_body_that_was_left_unsigned_is_refused",
            "test_garbage_is_refused_and_never_a_crash",
        ),
    },
    "signatures: replayed and stale": {
        "proof/intruders/test_signatures.py": (
            "test_a_signed_request_may_be_sent_again_for_a_quarter_of_an_hour_as_sqs_allows",
        ),
        "broker/test_process_security.py": ("test_a_signature_holds_for_a_quarter_of_an_hour_either_way",),
    },
    "signatures: guessed by timing": {
        "proof/intruders/test_signatures.py": (
            "test_secrets_and_signatures_are_compared_in_a_time_that_tells_nothing",
        ),
    },
    "another account's queue": {
        "proof/intruders/test_other_queues.py": (
            "test_a_handle_of_another_accounts_message_opens_nothing_at_a_queue_of_ones_own",
            "test_no_handle_can_be_made_out_of_another",
            "test_no_way_to_write_the_address_of_another_accounts_queue_gives_its_messages",
            "test_no_move_task_takes_messages_out_of_another_accounts_queue_or_puts_any_in",
            "test_no_redrive_policy_sends_another_accounts_queue_what_it_did_not_ask_for",
            "test_lists_show_another_account_nothing",
        ),
        "broker/test_accounts.py": (
            "test_another_account_may_do_nothing_without_a_policy",
            "test_a_move_task_of_another_account_cannot_be_cancelled",
            "test_the_admin_interface_is_for_users_of_the_brokers_own_account",
        ),
    },
    "receipt handles of another, a purged or a deleted queue": {
        "proof/intruders/test_other_queues.py": ("test_a_handle_of_a_queue_that_was_emptied_touches_no_later_message",),
        "broker/conformance/test_visibility_and_handles.py": (
            "test_garbage_and_foreign_handles_are_told_apart",
            "test_a_handle_that_was_altered_is_garbage",
        ),
    },
    "path tricks in names and folders": {
        "proof/intruders/test_paths.py": (
            "test_no_queue_has_such_a_name",
            "test_no_address_of_the_dashboard_leads_to_a_file",
            "test_no_job_id_leads_out_of_the_folder",
            "test_no_name_of_a_queue_puts_its_snapshot_elsewhere",
            "test_a_snapshot_does_not_follow_a_link",
            "test_the_token_of_a_dashboard_replaces_a_link_and_does_not_follow_it",
            "test_an_entry_in_the_registry_that_is_a_link_or_blows_up_harms_nothing",
        ),
        "test_state_folder.py": ("test_the_state_folder_is_where_the_user_says_and_is_nobody_elses_to_read",),
    },
    "bombs in headers, JSON and XML": {
        "proof/intruders/test_bombs.py": (
            "test_a_body_that_blows_up_is_refused_soon",
            "test_a_document_inside_of_a_request_that_blows_up_is_refused_too",
            "test_thousands_of_headers_are_refused_or_answered_soon",
            "test_a_filter_that_blows_up_is_answered_soon",
            "test_the_doctor_reads_a_log_that_unpacks_to_a_gigabyte_in_bounded_memory",
            "test_nothing_here_parses_xml",
        ),
        "proof/intruders/test_connections.py": (
            "test_headers_without_end_are_refused_by_the_dashboard_as_by_the_broker",
        ),
        "broker/test_process_http.py": ("test_headers_of_more_than_64_kib_are_refused",),
        "broker/test_policy.py": ("test_a_pattern_of_many_stars_takes_no_time",),
    },
    "giant bodies": {
        "proof/intruders/test_bombs.py": (
            "test_a_gigabyte_that_is_announced_is_refused_before_it_comes",
            "test_chunks_without_end_are_cut_off",
        ),
        "broker/test_process_http.py": (
            "test_a_body_that_says_it_is_too_long_is_refused_before_it_is_sent",
            "test_a_chunked_body_is_refused_once_it_is_too_long",
        ),
        "dashboard/test_security.py": ("test_too_much_is_refused_though_its_length_was_not_said",),
    },
    "request smuggling": {
        "proof/intruders/test_framing.py": (
            "test_a_request_whose_end_is_open_to_doubt_is_the_last_one_of_its_connection",
            "test_a_body_is_no_request_whatever_it_looks_like",
            "test_two_hosts_are_none",
        ),
        "broker/test_process_http.py": ("test_garbage_is_refused_and_the_connection_closed",),
    },
    "floods of pipelined requests": {
        "proof/intruders/test_connections.py": ("test_a_pipeline_of_the_dashboard_has_an_end",),
        "broker/test_process_http.py": ("test_a_long_pipeline_of_small_requests_takes_no_memory_to_speak_of",),
        "broker/test_http.py": ("test_a_client_that_does_not_read_is_not_read_from_either",),
    },
    "slow clients": {
        "proof/intruders/test_connections.py": (
            "test_a_client_that_sends_a_byte_now_and_then_is_let_go",
            "test_a_client_that_reads_no_answer_is_let_go_and_holds_up_nobody",
        ),
        "broker/test_http.py": (
            "test_a_client_that_takes_nothing_of_its_answer_for_a_minute_is_given_up",
            "test_of_all_clients_that_do_not_read_the_one_with_the_most_unread_goes",
        ),
        "telemetry/test_health.py": ("test_a_byte_now_and_then_does_not_prolong_the_time_for_a_request",),
    },
    "10,000 idle connections": {
        "proof/intruders/test_connections.py": (
            "test_a_crowd_that_sends_no_whole_request_keeps_nobody_out",
            "test_ten_thousand_connections_are_cut_to_the_limit_and_others_are_answered",
            "test_a_broker_that_may_open_few_files_takes_no_more_clients_than_fit",
        ),
        "broker/test_http.py": ("test_a_new_client_gets_the_place_of_one_that_never_asked_for_anything",),
        "telemetry/test_health.py": ("test_clients_that_send_no_request_make_room_for_those_that_do",),
    },
    "pages of other sites": {
        "proof/intruders/test_pages.py": (
            "test_a_page_of_another_site_has_no_effect_with_any_method_or_type_of_content",
            "test_a_page_of_another_site_reads_nothing",
            "test_a_preflight_permits_nothing",
            "test_nobody_is_talked_into_another_protocol",
        ),
        "broker/test_web_pages.py": ("test_a_page_with_an_image_of_another_site_cannot_purge_a_queue",),
        "dashboard/test_security.py": ("test_a_foreign_page_in_a_browser_has_no_effect_on_an_open_dashboard",),
        "telemetry/test_control_endpoint.py": ("test_a_page_in_a_browser_on_this_machine_is_refused",),
    },
    "DNS rebinding": {
        "proof/intruders/test_pages.py": ("test_a_name_that_was_pointed_here_reads_and_changes_nothing",),
        "dashboard/test_security.py": ("test_a_foreign_name_that_points_here_reads_nothing",),
    },
    "clickjacking": {
        "proof/intruders/test_pages.py": ("test_no_page_of_the_dashboard_can_be_framed",),
        "dashboard/test_security.py": ("test_every_answer_keeps_to_itself",),
    },
    "hostile input in pages": {
        "dashboard/test_pages_hostile.py": (
            "test_a_hostile_body_is_text_on_every_page",
            "test_a_foreign_name_in_the_address_is_text",
        ),
    },
    "escape sequences in a terminal": {
        "proof/intruders/test_terminal.py": (
            "test_what_a_hostile_endpoint_answers_cannot_touch_the_terminal",
            "test_what_a_hostile_dashboard_answers_cannot_touch_the_terminal",
            "test_what_a_hostile_worker_says_of_itself_cannot_touch_the_terminal",
            "test_nothing_in_a_message_or_a_name_can_touch_the_terminal",
            "test_an_argument_that_was_pasted_is_shown_without_its_escapes",
        ),
        "dashboard/test_terminal.py": ("test_what_a_message_says_cannot_touch_the_terminal",),
    },
    "secrets and bodies in what programs write": {
        "proof/intruders/test_secrets.py": (
            "test_a_worker_on_which_everything_fails_writes_down_no_body_and_no_secret",
            "test_no_password_of_a_ledger_is_shown_whatever_is_wrong_with_its_address",
            "test_a_broker_with_a_dashboard_writes_down_no_body_and_no_secret_and_shows_none_in_the_list_of_processes",
        ),
        "telemetry/test_structured_logs.py": ("test_a_secret_in_a_text_is_masked",),
        "dashboard/test_security.py": ("test_no_access_log_has_the_token",),
    },
    "secrets and bodies in Spark's pages": {
        "proof/intruders/test_secrets.py": ("test_what_spark_shows_and_keeps_of_a_stream_holds_no_body",),
        "spark/test_spark_secrets.py": ("test_spark_shows_the_ledgers_address_nowhere",),
    },
}
