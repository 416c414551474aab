/* What only the host's build has: the function that takes commands. */
#include "nic.h"

nic_issue_function *nic_issue;

/* Sets it. The program does so before it calls a handler. */
void nic_set_issue(nic_issue_function *issue)
{
    nic_issue = issue;
}
